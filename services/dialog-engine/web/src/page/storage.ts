/** Storage that may be blocked: then what is kept lasts until the page is left. */

export function kept(storage: () => Storage, name: string): string | null {
  try {
    return storage().getItem(name);
  } catch {
    return null;
  }
}

/** Keeps a text; nothing is kept of an empty one. Returns whether that was possible. */
export function keep(storage: () => Storage, name: string, value: string): boolean {
  try {
    if (value) storage().setItem(name, value);
    else storage().removeItem(name);
    return true;
  } catch {
    return false; // it lasts until the page is left
  }
}

/** Removes all whose name begins so. */
export function remove(storage: () => Storage, prefix: string): void {
  try {
    for (const name of Object.keys(storage())) if (name.startsWith(prefix)) storage().removeItem(name);
  } catch {
    // Then nothing was kept.
  }
}

export const ofTab = (): Storage => sessionStorage;
export const ofBrowser = (): Storage => localStorage;
