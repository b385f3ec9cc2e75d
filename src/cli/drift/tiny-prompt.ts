import { loadTinyEngine } from '../../compose/tiny-engine.ts'
import { vllmFields } from '../../gateway/upstreams/wire/chat-fields.ts'
import { renderChatBody } from '../../gateway/upstreams/wire/chat-request.ts'
import type { RenderPrompt } from './suggest-rules.ts'

/** Renders prompts as the tiny engine does, with its own template and tokenizer, without a request. */
export async function loadTinyPrompt(): Promise<RenderPrompt> {
  const { embeddedModelFolder, loadChatTemplate, loadTokenizer } = await loadTinyEngine()
  const folder = embeddedModelFolder()
  const template = await loadChatTemplate(folder, await loadTokenizer(folder), { images: true })
  return (request, { opensAnswer }) => {
    const body = JSON.parse(renderChatBody(request, {}, vllmFields).text) as {
      messages: Record<string, unknown>[]
      tools?: Record<string, unknown>[] | null
    }
    const tools = body.tools == null ? {} : { tools: body.tools }
    return template.tokenise({ messages: body.messages, ...tools, addGenerationPrompt: opensAnswer })
  }
}
