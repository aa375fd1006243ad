/** The address is `#/s/<sessionId>`, so that a reload and the back button find the conversation again. */

export const addressOf = (sessionId: string): string => `#/s/${encodeURIComponent(sessionId)}`;

export const addressed = (): string | null => decodeURIComponent(/^#\/s\/(.+)$/.exec(location.hash)?.[1] ?? "") || null;

export function writeAddress(sessionId: string | null): void {
  if (sessionId !== addressed()) history.pushState(null, "", sessionId ? addressOf(sessionId) : location.pathname);
}
