// The address of a page follows its state, so that it can be copied.

const PAUSE = 250; // milliseconds; browsers refuse pages that change their address all the time

/** Return a function to call after each change; `query()` is what the address is to say. */
export function rememberer(query) {
  let waiting = false;
  const write = () => {
    waiting = false;
    try {
      history.replaceState(null, "", query() ? `?${query()}` : location.pathname);
    } catch {
      // Some browsers do not let a page that was opened from a disk change its address.
    }
  };
  return () => {
    if (!waiting) setTimeout(write, PAUSE);
    waiting = true;
  };
}

/** Return what the address of the page says. */
export const query = () => location.search.slice(1) || location.hash.slice(1);
