import type { ChunkForm, ChunkParts, ChunkRun, DeltaEvent } from '../wire-event.ts'

/** Lists that the harness requested. Other lists are hidden. */
export interface ShownFields {
  ids: boolean
  logprobs: boolean
}

/** The constant texts of a frame: before each variable part, and behind the last part. */
type Frame = readonly string[]

/** Placeholders that JSON does not escape and that no other field of an answer contains. */
const MARKS: ChunkParts = {
  text: '<the text of this chunk>',
  logprobs: '{"token":"<the token of this chunk>","logprob":-1,"bytes":[],"top_logprobs":[]}',
  ids: '987654321',
}

/**
 * Renders runs of chunks. Chunks of one form have frames of one form: one frame is rendered with placeholders, and the parts
 * of each chunk replace them, with the bytes of the wire.
 */
export class RunFrames {
  readonly #shown: ShownFields
  readonly #render: (delta: DeltaEvent) => string
  readonly #frames = new Map<ChunkForm, Frame | undefined>()

  constructor(shown: ShownFields, render: (delta: DeltaEvent) => string) {
    this.#shown = shown
    this.#render = render
  }

  render(run: ChunkRun): string {
    const frame = this.#frameOf(run.form)
    if (frame === undefined) return this.renderEach(run)
    const [before = '', afterText = '', ...afterLists] = frame
    let frames = ''
    if (afterLists.length === 0) {
      for (const text of run.texts) frames += before + text + afterText
    } else {
      for (const parts of run.readParts()) {
        frames += before + parts.text + afterText
        this.#listsOf(parts).forEach((list, i) => (frames += list + afterLists[i]))
      }
    }
    return frames
  }

  /** Renders each chunk by the reference renderer, with the same result. */
  renderEach(run: ChunkRun): string {
    return run
      .readParts()
      .map((parts) => this.#render(run.form.withParts(parts)))
      .join('')
  }

  #frameOf(form: ChunkForm): Frame | undefined {
    if (!this.#frames.has(form)) this.#frames.set(form, this.#split(this.#render(form.withParts(MARKS))))
    return this.#frames.get(form)
  }

  /** Undefined when a placeholder does not occur exactly once. */
  #split(text: string): Frame | undefined {
    const frame: string[] = []
    let rest = text
    for (const mark of [MARKS.text, ...this.#listsOf(MARKS)]) {
      const [before, after, ...more] = rest.split(mark)
      if (before === undefined || after === undefined || more.length > 0) return undefined
      frame.push(before)
      rest = after
    }
    return [...frame, rest]
  }

  /** The shown lists, in the order of a frame. */
  #listsOf({ logprobs, ids }: ChunkParts): string[] {
    return [...(this.#shown.logprobs ? [logprobs] : []), ...(this.#shown.ids ? [ids] : [])]
  }
}
