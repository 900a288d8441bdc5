"""What a person sees: messages, streamed lines, tables, JSON. The only room that knows rich."""
