/** Storage that may be blocked: then what is kept lasts until the page is left. */

export function kept(storage: () => Storage, name: string): string | null {
  try {
    return storage().getItem(name);
  } catch {
    return null;
  }
}

export function keep(storage: () => Storage, name: string, value: string): void {
  try {
    storage().setItem(name, value);
  } catch {
    // It lasts until the page is left.
  }
}

export const ofTab = (): Storage => sessionStorage;
export const ofBrowser = (): Storage => localStorage;
