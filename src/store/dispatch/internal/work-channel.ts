/** `pg_notify` channel: sessions may have become leasable. */
export const WORK_CHANNEL = 'polar_work'
