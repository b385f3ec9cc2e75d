/** Announced with `pg_notify` when there may be something to lease that was not there before. */
export const WORK_CHANNEL = 'polar_work'
