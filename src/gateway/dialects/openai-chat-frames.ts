import type { ChunkForm, ChunkParts, ChunkRun, DeltaEvent } from '../wire-event.ts'

/** Which of the lists beside the text a caller sees. */
export interface ShownFields {
  ids: boolean
  logprobs: boolean
}

/** What stands before each part of a frame that differs from chunk to chunk, and behind the last one. */
type Frame = readonly string[]

/** JSON writes them as they are, and the other fields of an answer do not have them. */
const MARKS: ChunkParts = {
  text: '<the text of this chunk>',
  logprobs: '{"token":"<the token of this chunk>","logprob":-1,"bytes":[],"top_logprobs":[]}',
  ids: '987654321',
}

/**
 * The frames of runs. Chunks of one form have frames of one form, so one is rendered and the parts of the others are put
 * in its place, as they stood on the wire.
 */
export class RunFrames {
  readonly #shown: ShownFields
  readonly #render: (delta: DeltaEvent) => string
  readonly #frames = new Map<ChunkForm, Frame | undefined>()

  constructor(shown: ShownFields, render: (delta: DeltaEvent) => string) {
    this.#shown = shown
    this.#render = render
  }

  /** A frame for each chunk. */
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

  /** The same by the definition. */
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

  /** Undefined where it cannot be told what stands where. */
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

  /** Those that are shown, in the order of a frame. */
  #listsOf({ logprobs, ids }: ChunkParts): string[] {
    return [...(this.#shown.logprobs ? [logprobs] : []), ...(this.#shown.ids ? [ids] : [])]
  }
}
