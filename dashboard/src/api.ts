// The Admin API, over the session of this browser.

export interface Session {
  authenticated: boolean;
  name?: string;
  role?: 'admin' | 'operator' | 'viewer' | 'developer';
  csrf?: string;
  key_required?: boolean;
  /** True if an identity provider lets people in. */
  oidc?: boolean;
}

export interface About {
  version: string;
  host: string;
  started: number;
  workers: number;
  revision: number;
  family: string;
  usage: boolean;
  /** True if the gateway's own backend of 3scale is on. */
  threescale_backend?: boolean;
  read_only: string | null;
  counts: Record<string, number>;
}

export interface Resource {
  key: string;
  value: Json;
  created: number;
  modified: number;
}

export interface Finding {
  severity: 'warning' | 'error';
  path: string;
  message: string;
  hint?: string;
}

export type Json = any;

/** An answer that is no success. */
export class ApiError extends Error {
  constructor(readonly status: number, readonly body: Json, readonly etag: string | null) {
    super(messageOf(status, body));
  }
  get findings(): Finding[] {
    return Array.isArray(this.body?.diagnostics) ? this.body.diagnostics : [];
  }
}

function messageOf(status: number, body: Json): string {
  if (typeof body === 'string' && body) return body;
  return body?.error_msg ?? body?.message ?? `the gateway answered ${status}`;
}

/** A value that components follow. */
export class Store<T> {
  private readers = new Set<(value: T) => void>();
  constructor(private current: T) {}
  get value() {
    return this.current;
  }
  set value(next: T) {
    this.current = next;
    this.readers.forEach((read) => read(next));
  }
  follow(read: (value: T) => void) {
    this.readers.add(read);
    return () => void this.readers.delete(read);
  }
}

export const session = new Store<Session | null>(null);
export const about = new Store<About | null>(null);
/** False while the gateway does not answer. */
export const reachable = new Store(true);

export interface Answer<T> {
  body: T;
  etag: string | null;
  status: number;
}

export async function request<T = Json>(
  method: string, path: string, body?: unknown, fields: Record<string, string> = {},
): Promise<Answer<T>> {
  const headers: Record<string, string> = { ...fields };
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (method !== 'GET' && session.value?.csrf) headers['X-CSRF-Token'] = session.value.csrf;
  let response: Response;
  try {
    response = await fetch(path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: 'no-store', credentials: 'same-origin',
    });
  } catch {
    reachable.value = false;
    throw new ApiError(0, 'the gateway does not answer', null);
  }
  reachable.value = true;
  const text = await response.text();
  let found: Json = text;
  try {
    found = text ? JSON.parse(text) : null;
  } catch { /* a text */ }
  const etag = response.headers.get('etag');
  if (!response.ok) {
    if (response.status === 401 && session.value?.authenticated && !path.endsWith('/session')) {
      session.value = { authenticated: false };
    }
    throw new ApiError(response.status, found, etag);
  }
  return { body: found as T, etag, status: response.status };
}

export const get = async <T = Json>(path: string): Promise<T> => (await request<T>('GET', path)).body;

export async function refreshSession() {
  session.value = await get<Session>('/weir/v1/session');
}

export async function logIn(secret: string, as: 'key' | 'token') {
  session.value = (await request<Session>('POST', '/weir/v1/session', { [as]: secret })).body;
}

export async function logOut() {
  session.value = (await request<Session>('DELETE', '/weir/v1/session')).body;
}

export async function refreshAbout() {
  about.value = await get<About>('/weir/v1/about');
}

export interface Problem {
  severity: 'warning' | 'error';
  sort: string;
  key: string;
  text: string;
  hint: string;
}

export const problems = new Store<{ problems: Problem[]; health: Json[] } | null>(null);

export async function refreshProblems() {
  problems.value = await get('/weir/v1/problems');
}

const OPERATORS = ['consumers', 'credentials', 'consumer_groups', 'plans'];

/** The reason why this browser may not change a kind of resource; null where it may. */
export function refusal(kind: string): string | null {
  const role = session.value?.role;
  if (about.value?.read_only) return about.value.read_only;
  if (role === 'admin') return null;
  if (role === 'operator') return OPERATORS.includes(kind) ? null : 'The role operator changes consumers, credentials, groups and plans only.';
  return 'The role viewer changes nothing.';
}

export function resourcePath(key: string) {
  return '/weir/v1/resources/' + key.split('/').map(encodeURIComponent).join('/');
}

export const query = (pairs: Record<string, string | number | undefined | null>) => {
  const set = Object.entries(pairs).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return set.length ? '?' + set.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join('&') : '';
};

/** Follows a stream of events while the page is seen; the function that is returned ends it. A page in the background holds
 * no connection, of which browsers open only six to a host. */
export function stream(path: string, on: Record<string, (data: Json) => void>, state?: (open: boolean) => void) {
  let source: EventSource | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = undefined;
  };
  const open = () => {
    close();
    source = new EventSource(path);
    source.onopen = () => state?.(true);
    source.onerror = () => {
      state?.(false);
      // The browser tries again by itself, unless the answer was an error.
      if (source?.readyState === EventSource.CLOSED) {
        refreshSession().catch(() => undefined);
        timer = setTimeout(open, 3000);
      }
    };
    for (const [name, read] of Object.entries(on)) {
      source.addEventListener(name, (event) => read(JSON.parse((event as MessageEvent).data)));
    }
  };
  const seen = () => {
    if (document.hidden) close();
    else if (!source) open();
  };
  document.addEventListener('visibilitychange', seen);
  seen();
  return () => {
    document.removeEventListener('visibilitychange', seen);
    close();
  };
}
