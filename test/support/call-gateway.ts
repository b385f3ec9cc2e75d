/** A minimal harness: calls the model N times with the variables that `polar record` sets. */
import OpenAI from 'openai'

const client = new OpenAI({ maxRetries: 0 })
const count = Number(process.argv[2])
let [answered, refused] = [0, 0]
for (let i = 0; i < count; i++) {
  const content = `call ${i} ${crypto.randomUUID()}`
  try {
    const answer = await client.chat.completions.create({ model: 'tiny', messages: [{ role: 'user', content }] })
    if (answer.choices[0]?.finish_reason) answered += 1
  } catch (error) {
    if (!(error instanceof OpenAI.APIError) || error.status !== 503) throw error
    refused += 1
  }
}
console.error(`${answered} calls answered, ${refused} refused`)
