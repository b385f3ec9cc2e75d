import { type RawBuilder, sql } from 'kysely'

/** From each lane as many as its share, in their order; rows that others are at are passed over. */
export const pickFirst: RawBuilder<unknown> = sql`
  select s.id, s.priority, s.round, s.seq from shares cross join lateral (
    select id, priority, round, seq from sessions where state = 'queued' and lane_id = shares.lane_id
    order by priority desc, round, seq limit shares.n for no key update skip locked
  ) s
`

/** How far into a lane we look for warm ones. */
const LOOK_AHEAD = 64
/** A session is never overtaken by one that was queued so many later, so none waits for ever. */
const MOST_OVERTAKEN = 512

/**
 * The same, but of those near the head of a lane first the ones that have most of what they like to have at hand. Where
 * that is the same, every node has its own favourites, by a hash: if all took the first, the samples of a task would be
 * gone to as many nodes before one of them is warm for it, and in the next epoch each would be elsewhere again. Only
 * within one priority and one round, so that every task keeps its turn.
 */
export function pickWarm(nodeId: string, affinity: readonly string[]): RawBuilder<unknown> {
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
