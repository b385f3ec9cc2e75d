/** `pg_notify` channel: the policy state, or what a node has confirmed, may have changed. */
export const POLICY_CHANNEL = 'polar_policy'

/** Payload of a notification. */
export type PolicyNotice = 'state' | 'nodes'
