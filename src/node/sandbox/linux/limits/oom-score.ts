/**
 * Shell command that makes the shell and its descendants the first choice of the kernel's out-of-memory killer. Every
 * process may raise its own score.
 */
export const RAISE_OOM_SCORE = '{ echo 1000 > /proc/self/oom_score_adj; } 2>/dev/null || :'
