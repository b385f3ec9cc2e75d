import { type RawBuilder, sql } from 'kysely'

/** Picks from each lane as many sessions as its share, in queue order; skips locked rows. */
export const pickFirst: RawBuilder<unknown> = sql`
  select s.id, s.priority, s.round, s.seq from shares cross join lateral (
    select id, priority, round, seq from sessions where state = 'queued' and lane_id = shares.lane_id
    order by priority desc, round, seq limit shares.n for no key update skip locked
  ) s
`

/** How many sessions of a lane beyond its share are compared by affinity. */
const LOOK_AHEAD = 64
/** A session is never overtaken by one that was queued this many positions later, so no session starves. */
const MOST_OVERTAKEN = 512

/**
 * Like `pickFirst`, but among the sessions near the head of a lane prefers those with most affinity keys cached on the node.
 * Ties are broken by a hash of node and key: if all nodes picked the first session, the samples of a task would spread over
 * as many nodes before one node has the image cached, and over other nodes in the next epoch. Reorders only within one
 * priority and one round, so that the order of tasks does not change.
 */
export function pickByAffinity(nodeId: string, affinity: readonly string[]): RawBuilder<unknown> {
  return sql`
    select s.id, s.priority, s.round, s.seq from shares cross join lateral (
      select sessions.id, w.priority, w.round, w.seq from (
        select id, priority, round, seq, case when is_near then (
          select count(*) from jsonb_array_elements_text(affinity) k where ${JSON.stringify(affinity)}::jsonb ? k
        ) else 0 end as warmth, case when is_near then hashtext(${nodeId}::text || (affinity->>0)) end as liking
        from (
          select id, priority, round, seq, affinity,
            seq < first_value(seq) over (partition by priority, round order by seq) + ${MOST_OVERTAKEN}::int as is_near
          from (
            select id, priority, round, seq, affinity from sessions
            where state = 'queued' and lane_id = shares.lane_id
            order by priority desc, round, seq limit (shares.n + ${LOOK_AHEAD})::int
          ) ahead
        ) near
      ) w join sessions on sessions.id = w.id and sessions.state = 'queued'
      order by w.priority desc, w.round, w.warmth desc, w.liking nulls last, w.seq limit shares.n
      for no key update of sessions skip locked
    ) s
  `
}
