import type { EventReply } from '../../api/render-reply.ts'
import type { ServerEvent } from '../../api/routes/server-routes.ts'
import type { ServerDeps, Some } from '../deps.ts'
import type { FeedItem, Subscription } from '../notify/event-feed.ts'

export function eventHandlers(deps: ServerDeps): Some<'streamEvents'> {
  return {
    async streamEvents({ query: { last_event_id: after, task_id: taskId }, signal }) {
      deps.waits.assertRoom()
      return streamEvents({ after, taskId, signal }, deps)
    },
  }
}

async function* streamEvents(
  subscription: Subscription,
  { feed, waits, clock }: ServerDeps,
): AsyncGenerator<EventReply<ServerEvent>> {
  using end = waits.enter(subscription.signal)
  for await (const item of feed.subscribe({ ...subscription, signal: end.signal })) yield toReply(item, clock.now())
}

/** Also `hello` and `ping` have a place: whoever heard nothing else comes back to where it was. */
function toReply(item: FeedItem, now: number): EventReply<ServerEvent> {
  if (item.kind !== 'event') return { id: item.cursor, data: { type: item.kind, ts: now / 1000, data: {} } }
  const { cursor, type, ts, data } = item.event
  return { id: cursor, data: { type, ts: ts / 1000, data } }
}
