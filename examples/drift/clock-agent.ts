/**
 * An agent that writes the current time into its system prompt with every call, so that no prompt continues an earlier one.
 * Calls the model three times through the variables that `polar record` sets.
 */
const base = process.env['OPENAI_BASE_URL']
const key = process.env['OPENAI_API_KEY']

const conversation: { role: string; content: string }[] = []
for (const question of ['Who are you?', 'What can you do?', 'Thank you.']) {
  conversation.push({ role: 'user', content: question })
  const system = { role: 'system', content: `You are a helpful agent.\nIt is: ${new Date().toISOString()}\nBe brief.` }
  const response = await fetch(`${base}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
    body: JSON.stringify({ model: 'tiny', messages: [system, ...conversation], max_tokens: 40 }),
  })
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`)
  const { choices } = (await response.json()) as { choices: { message: { content: string } }[] }
  conversation.push({ role: 'assistant', content: choices[0]?.message.content ?? '' })
}
