"""The CPU flags of each generation, as the kernel prints them. Data only.

A generation is its predecessor with flags added and removed; ORDER is the kernel's order.
"""

from __future__ import annotations

from typing import Final

_ORDER = """
fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush dts acpi mmx fxsr sse sse2
ss ht tm pbe syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc art arch_perfmon pebs bts rep_good
amd_lbr_v2 nopl xtopology nonstop_tsc cpuid extd_apicid aperfmperf rapl tsc_known_freq pni pclmulqdq dtes64
monitor ds_cpl vmx smx est tm2 ssse3 sdbg fma cx16 xtpr pdcm pcid dca sse4_1 sse4_2 x2apic movbe popcnt
tsc_deadline_timer aes xsave avx f16c rdrand lahf_lm cmp_legacy svm extapic cr8_legacy abm sse4a misalignsse
3dnowprefetch osvw ibs skinit wdt tce topoext perfctr_core perfctr_nb bpext perfctr_llc mwaitx cpb
cpuid_fault epb cat_l3 cat_l2 cdp_l3 invpcid_single intel_ppin cdp_l2 hw_pstate ssbd mba perfmon_v2 ibrs
ibpb stibp ibrs_enhanced vmmcall tpr_shadow flexpriority ept vpid ept_ad fsgsbase tsc_adjust bmi1 avx2 smep
bmi2 erms invpcid cqm mpx rdt_a avx512f avx512dq rdseed adx smap avx512ifma clflushopt clwb intel_pt
avx512cd sha_ni avx512bw avx512vl xsaveopt xsavec xgetbv1 xsaves cqm_llc cqm_occup_llc cqm_mbm_total
cqm_mbm_local split_lock_detect user_shstk avx_vnni avx512_bf16 clzero irperf xsaveerptr rdpru wbnoinvd
amd_ppin cppc dtherm ida arat pln pts hwp hwp_act_window hwp_epp hwp_pkg_req npt lbrv svm_lock nrip_save
tsc_scale vmcb_clean flushbyasid decodeassists pausefilter pfthreshold avic v_vmsave_vmload vgif x2avic
v_spec_ctrl vnmi avx512vbmi umip pku ospke waitpkg avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni
avx512_bitalg tme avx512_vpopcntdq la57 rdpid bus_lock_detect cldemote movdiri movdir64b enqcmd
overflow_recov succor smca fsrm md_clear serialize tsxldtrk pconfig arch_lbr ibt amx_bf16 avx512_fp16
amx_tile amx_int8 flush_l1d arch_capabilities
"""
_COMMON = """
fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall
nx pdpe1gb rdtscp lm constant_tsc rep_good nopl xtopology nonstop_tsc cpuid aperfmperf pni pclmulqdq monitor
ssse3 cx16 sse4_1 sse4_2 popcnt aes xsave avx lahf_lm ssbd ibrs ibpb stibp
"""
_SANDYBRIDGE = f"""{_COMMON}
dts acpi ss tm pbe arch_perfmon pebs bts dtes64 ds_cpl vmx smx est tm2 xtpr pdcm pcid dca x2apic
tsc_deadline_timer epb tpr_shadow flexpriority ept vpid xsaveopt dtherm ida arat pln pts md_clear flush_l1d
"""
_HASWELL = f"""{_SANDYBRIDGE}
sdbg fma movbe f16c rdrand abm cpuid_fault invpcid_single intel_ppin ept_ad fsgsbase tsc_adjust bmi1 avx2 smep
bmi2 erms invpcid cqm cqm_llc cqm_occup_llc
"""
_SKYLAKE = f"""{_HASWELL}
art 3dnowprefetch cat_l3 cdp_l3 mba mpx rdt_a avx512f avx512dq rdseed adx smap clflushopt clwb intel_pt
avx512cd avx512bw avx512vl xsavec xgetbv1 xsaves cqm_mbm_total cqm_mbm_local pku ospke
"""
_CASCADELAKE = f"{_SKYLAKE} ibrs_enhanced avx512_vnni arch_capabilities hwp hwp_act_window hwp_epp hwp_pkg_req"
_COOPERLAKE = f"{_CASCADELAKE} avx512_bf16"
# Ice Lake has no bf16, unlike Cooper Lake, and no mpx.
_ICELAKE = f"""{_CASCADELAKE}
-mpx avx512ifma sha_ni split_lock_detect wbnoinvd avx512vbmi umip avx512_vbmi2 gfni vaes vpclmulqdq
avx512_bitalg tme avx512_vpopcntdq la57 rdpid fsrm pconfig
"""
_SAPPHIRERAPIDS = f"""{_ICELAKE}
tsc_known_freq cat_l2 cdp_l2 avx_vnni avx512_bf16 waitpkg bus_lock_detect cldemote movdiri movdir64b enqcmd
serialize tsxldtrk arch_lbr ibt vnmi amx_bf16 avx512_fp16 amx_tile amx_int8
"""
_EMERALDRAPIDS = f"{_SAPPHIRERAPIDS} -invpcid_single user_shstk"
# /proc/cpuinfo has no flag for AMX-FP16 (cpufeatures.h hides it); only the model number shows it.
_GRANITERAPIDS = _EMERALDRAPIDS
_GENOA = f"""{_COMMON}
mmxext fxsr_opt amd_lbr_v2 extd_apicid rapl fma pcid x2apic movbe f16c rdrand cmp_legacy svm extapic cr8_legacy
abm sse4a misalignsse 3dnowprefetch osvw ibs skinit wdt tce topoext perfctr_core perfctr_nb bpext perfctr_llc
mwaitx cpb cat_l3 cdp_l3 invpcid_single hw_pstate mba perfmon_v2 vmmcall fsgsbase bmi1 avx2 smep bmi2 erms
invpcid cqm rdt_a avx512f avx512dq rdseed adx smap avx512ifma clflushopt clwb avx512cd sha_ni avx512bw
avx512vl xsaveopt xsavec xgetbv1 xsaves cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local avx512_bf16 clzero
irperf xsaveerptr rdpru wbnoinvd amd_ppin cppc arat npt lbrv svm_lock nrip_save tsc_scale vmcb_clean
flushbyasid decodeassists pausefilter pfthreshold avic v_vmsave_vmload vgif x2avic v_spec_ctrl vnmi avx512vbmi
umip pku ospke avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq la57 rdpid
overflow_recov succor smca fsrm flush_l1d
"""
_GRAVITON3 = """
fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3
sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng
"""


ORDER: Final = tuple(_ORDER.split())


def _in_order(flags: str) -> str:
    selected: set[str] = set()
    for flag in flags.split():
        if flag.startswith("-"):
            selected.discard(flag[1:])
        else:
            selected.add(flag)
    unknown = selected - set(ORDER)
    if unknown:
        raise ValueError(f"flags without a place in ORDER: {sorted(unknown)}")
    return " ".join(flag for flag in ORDER if flag in selected)


FLAGS: Final = {
    "sandybridge": _in_order(_SANDYBRIDGE),
    "haswell": _in_order(_HASWELL),
    "skylake-sp": _in_order(_SKYLAKE),
    "cascadelake": _in_order(_CASCADELAKE),
    "cooperlake": _in_order(_COOPERLAKE),
    "icelake-sp": _in_order(_ICELAKE),
    "sapphirerapids": _in_order(_SAPPHIRERAPIDS),
    "emerald-rapids": _in_order(_EMERALDRAPIDS),
    "graniterapids": _in_order(_GRANITERAPIDS),
    "epyc-genoa": _in_order(_GENOA),
    "graviton3": " ".join(_GRAVITON3.split()),
}
