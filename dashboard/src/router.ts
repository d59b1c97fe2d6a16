// Pages are behind `#`, so that the server has one page and a reload keeps the place.
import { useEffect, useState } from 'preact/hooks';
import { about } from './api';

export interface Place {
  path: string[];
  query: URLSearchParams;
}

export function place(): Place {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  return { path: path.split('/').filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

export function href(path: string[], query: Record<string, string> = {}): string {
  const set = Object.entries(query).filter(([, value]) => value !== '');
  const tail = set.length ? '?' + new URLSearchParams(set).toString() : '';
  return '#/' + path.map(encodeURIComponent).join('/') + tail;
}

let guard: (() => boolean) | null = null;

/** Asks before the page is left; null: no more. */
export function setGuard(next: (() => boolean) | null) {
  guard = next;
}

export function go(path: string[], query: Record<string, string> = {}) {
  location.hash = href(path, query);
}

/** Replaces the query of this page without another entry in the browser's history. */
export function setQuery(query: Record<string, string>) {
  history.replaceState(null, '', href(place().path, query));
  window.dispatchEvent(new Event('hashchange'));
}

export function usePlace(): Place {
  const [current, set] = useState(place);
  const [shown] = useState(() => location.hash);
  useEffect(() => {
    let last = location.hash;
    // It may have changed before this effect ran.
    if (last !== shown) set(place());
    const changed = () => {
      const leaves = last.split('?')[0] !== location.hash.split('?')[0];
      if (leaves && guard && !guard()) {
        history.replaceState(null, '', last);
        return;
      }
      if (leaves) guard = null;
      last = location.hash;
      set(place());
    };
    const unload = (event: BeforeUnloadEvent) => {
      if (guard) event.preventDefault();
    };
    addEventListener('hashchange', changed);
    addEventListener('beforeunload', unload);
    return () => {
      removeEventListener('hashchange', changed);
      removeEventListener('beforeunload', unload);
    };
  }, []);
  return current;
}

/** The page of a resource by its key. */
export function resourceHref(key: string, query: Record<string, string> = {}) {
  const [kind = '', ...rest] = key.split('/');
  switch (about.value?.family) {
    case 'tyk': return href(['entity', 'apis', ...rest], query);
    case '3scale': return href(['product', ...rest], query);
    case 'kong': return href(['entity', kind, ...rest], query);
    default: return href(['resource', kind, ...rest], query);
  }
}
