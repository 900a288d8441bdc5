"""Jobs as `scontrol show job -o` prints them."""

RUN = "train-1124-101010-abcd"


def shown(state: str, reason: str = "None", code: str = "0:0", name: str = RUN, restarts: int = 0, at: str = "") -> str:
    return (
        f"JobId=12 JobName={name} UserId=me(1) MCS_label=N/A Priority=1 Nice=0 Account=(null) QOS=(null) "
        f"JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} BatchFlag=1 ExitCode={code} "
        f"{at} ReqNodeList=(null) NodeList=node[2-3] BatchHost=node2 Command=/x JobState=FAKE BatchHost=fake"
    )
