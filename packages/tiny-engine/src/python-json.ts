/**
 * JSON as Python's `json` module parses and serializes it. Servers in Python write parts of the parsed request into the
 * prompt, so the ids of a prompt depend on Python's numbers: 3.0 stays 3.0, 1e3 becomes 1000.0, a 20-digit integer keeps its
 * digits, and an object keeps the order of its keys, unlike a JavaScript object with the keys "10", "2".
 */

/** A number in Python's notation. */
export class PythonNumber {
  readonly text: string

  constructor(text: string) {
    this.text = text
  }
}

/** Result of `parsePythonJson`. Serialization also accepts plain JavaScript values. */
export type PythonJson = null | boolean | string | PythonNumber | PythonJson[] | Map<string, PythonJson>

/** Like `json.loads`, `NaN` and `Infinity` included. Throws a SyntaxError. */
export function parsePythonJson(text: string): PythonJson {
  const reader = new Reader(text)
  const value = reader.readValue()
  reader.expectEnd()
  return value
}

/** Python notation of a JavaScript number: whole numbers become integers, because the decimal point is lost. */
export function toPythonNumber(value: number | bigint): PythonNumber {
  if (typeof value === 'bigint') return new PythonNumber(value.toString())
  return new PythonNumber(Number.isSafeInteger(value) ? (value + 0).toString() : printFloat(value))
}

/** `repr` of a float: the shortest exact digits, with an exponent below 1e-4 and from 1e16. */
export function printFloat(value: number): string {
  if (Number.isNaN(value)) return 'NaN'
  if (!Number.isFinite(value)) return value > 0 ? 'Infinity' : '-Infinity'
  if (value === 0) return Object.is(value, -0) ? '-0.0' : '0.0'
  const [mantissa = '', exponentText = ''] = Math.abs(value).toExponential().split('e')
  const sign = value < 0 ? '-' : ''
  const digits = mantissa.replace('.', '')
  const exponent = Number(exponentText)
  if (exponent < -4 || exponent >= 16) {
    const power = String(Math.abs(exponent)).padStart(2, '0')
    return `${sign}${mantissa}e${exponent < 0 ? '-' : '+'}${power}`
  }
  if (exponent < 0) return `${sign}0.${'0'.repeat(-exponent - 1)}${digits}`
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, '0')
  return `${sign}${whole}.${digits.slice(exponent + 1) || '0'}`
}

const WORDS: readonly (readonly [string, PythonJson])[] = [
  ['true', true],
  ['false', false],
  ['null', null],
  ['NaN', new PythonNumber('NaN')],
  ['Infinity', new PythonNumber('Infinity')],
  ['-Infinity', new PythonNumber('-Infinity')],
]

class Reader {
  readonly #number = /-?(?:0|[1-9]\d*)(?<fraction>\.\d+)?(?<exponent>[eE][+-]?\d+)?/y
  readonly #space = /[ \t\n\r]*/y
  readonly #text: string
  #at = 0

  constructor(text: string) {
    this.#text = text
  }

  readValue(): PythonJson {
    this.#match(this.#space)
    const value = this.#readBareValue()
    this.#match(this.#space)
    return value
  }

  expectEnd(): void {
    if (this.#at < this.#text.length) this.#fail()
  }

  #readBareValue(): PythonJson {
    if (this.#take('{')) return this.#readObject()
    if (this.#take('[')) return this.#readArray()
    const word = WORDS.find(([name]) => this.#take(name))
    if (word !== undefined) return word[1]
    return this.#readString() ?? this.#readNumber() ?? this.#fail()
  }

  #readObject(): Map<string, PythonJson> {
    const members = new Map<string, PythonJson>()
    this.#match(this.#space)
    if (this.#take('}')) return members
    do {
      this.#match(this.#space)
      const key = this.#readString() ?? this.#fail()
      this.#match(this.#space)
      if (!this.#take(':')) this.#fail()
      members.set(key, this.readValue())
    } while (this.#take(','))
    if (!this.#take('}')) this.#fail()
    return members
  }

  #readArray(): PythonJson[] {
    const elements: PythonJson[] = []
    this.#match(this.#space)
    if (this.#take(']')) return elements
    do elements.push(this.readValue())
    while (this.#take(','))
    if (!this.#take(']')) this.#fail()
    return elements
  }

  #readString(): string | undefined {
    const start = this.#at
    if (!this.#take('"')) return undefined
    while (this.#at < this.#text.length && this.#text[this.#at] !== '"')
      this.#at += this.#text[this.#at] === '\\' ? 2 : 1
    if (!this.#take('"')) this.#fail()
    return JSON.parse(this.#text.slice(start, this.#at)) as string
  }

  #readNumber(): PythonNumber | undefined {
    const match = this.#match(this.#number)
    if (match === undefined) return undefined
    const isFloat = match.groups?.['fraction'] !== undefined || match.groups?.['exponent'] !== undefined
    if (isFloat) return new PythonNumber(printFloat(Number(match[0])))
    return new PythonNumber(match[0] === '-0' ? '0' : match[0])
  }

  #take(literal: string): boolean {
    if (!this.#text.startsWith(literal, this.#at)) return false
    this.#at += literal.length
    return true
  }

  #match(pattern: RegExp): RegExpExecArray | undefined {
    pattern.lastIndex = this.#at
    const match = pattern.exec(this.#text)
    if (match === null) return undefined
    this.#at = pattern.lastIndex
    return match
  }

  #fail(): never {
    throw new SyntaxError(`not JSON at character ${this.#at}`)
  }
}
