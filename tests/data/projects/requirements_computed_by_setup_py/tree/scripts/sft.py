import handbook
