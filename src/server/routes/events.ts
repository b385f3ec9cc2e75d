import type { EventReply } from '../../api/render-reply.ts'
import type { ServerEvent } from '../../api/routes/server-routes.ts'
import type { ServerDeps, Some } from '../deps.ts'
import type { FeedItem, FeedOptions } from '../notify/event-feed.ts'

export function eventHandlers(deps: ServerDeps): Some<'streamEvents'> {
  return {
    async streamEvents({ query: { last_event_id: after, task_id: taskId }, signal }) {
      deps.longPolls.assertCapacity()
      return streamEvents({ after, taskId, signal }, deps)
    },
  }
}

async function* streamEvents(
  options: FeedOptions,
  { feed, longPolls, clock }: ServerDeps,
): AsyncGenerator<EventReply<ServerEvent>> {
  using end = longPolls.begin(options.signal)
  for await (const item of feed.subscribe({ ...options, signal: end.signal })) yield toReply(item, clock.now())
}

/** `hello` and `ping` have an id too, so that a reader without events can resume from it. */
function toReply(item: FeedItem, now: number): EventReply<ServerEvent> {
  if (item.kind !== 'event') return { id: item.cursor, data: { type: item.kind, ts: now / 1000, data: {} } }
  const { cursor, type, ts, data } = item.event
  return { id: cursor, data: { type, ts: ts / 1000, data } }
}
