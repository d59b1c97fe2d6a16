// The frame around all pages: navigation, session, theme.
import { useEffect, useRef, useState } from 'preact/hooks';
import { about, logIn, logOut, problems, reachable, refreshAbout, refreshProblems, refreshSession, session, stream } from './api';
import { asApiError, Badge, Button, Field, Loading, Notice, Toasts, toast, useStore } from './controls';
import { themes } from './chart';
import { count } from './format';
import { Icon } from './icons';
import { KINDS } from './kinds';
import { Developer } from './pages/developer';
import { Explain } from './pages/explain';
import { History } from './pages/history';
import { Keys } from './pages/keys';
import { KONG, KongEntity, KongList } from './pages/kong';
import { List } from './pages/list';
import { Overview } from './pages/overview';
import { Plugins } from './pages/plugins';
import { Problems } from './pages/problems';
import { NewPage, ResourcePage } from './pages/resource';
import { Tail } from './pages/tail';
import { Applications, Product, Products } from './pages/threescale';
import { TYK, TykEntity, TykList } from './pages/tyk';
import { Usage } from './pages/usage';
import { go, href, usePlace } from './router';

export function App() {
  const current = useStore(session);
  const up = useStore(reachable);
  const family = useStore(about)?.family;
  const [known, setKnown] = useState(false);
  const [refused, setRefused] = useState('');
  useEffect(() => {
    refreshSession().catch((fault) => setRefused(asApiError(fault).message));
  }, []);
  useEffect(() => {
    if (current?.authenticated) setKnown(true);
  }, [current]);
  useEffect(() => {
    if (up) return;
    const timer = setInterval(() => refreshSession().catch(() => undefined), 2000);
    return () => clearInterval(timer);
  }, [up]);
  useEffect(() => {
    if (!current?.authenticated || current.role === 'developer') return;
    if (!about.value) refreshAbout().catch(() => undefined);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const changed = () => {
      clearTimeout(timer);
      timer = setTimeout(() => refreshAbout().catch(() => undefined), 200);
    };
    if (family === undefined) return;
    if (family === 'kong') {
      const asking = setInterval(changed, 5000);
      return () => clearInterval(asking);
    }
    // What has changed while the stream was closed is asked for when it opens.
    const end = stream('/weir/v1/events', { change: changed, reset: changed }, (open) => open && changed());
    return () => {
      clearTimeout(timer);
      end();
    };
  }, [current?.authenticated, current?.role, family]);
  useEffect(() => {
    if (!current?.authenticated || current.role === 'developer') return;
    const look = () => void refreshProblems().catch(() => undefined);
    look();
    const timer = setInterval(look, 30_000);
    return () => clearInterval(timer);
  }, [current?.authenticated, current?.role]);
  // A session that ends leaves the page as it is, behind the dialog.
  const developer = useRef(false);
  if (current?.role) developer.current = current.role === 'developer';
  if (!current) return <main class="login">{!up ? <Unreachable /> : refused && <Notice tone="bad" title="The gateway refuses this page">{refused}</Notice>}</main>;
  // Whoever was logged in keeps the page, and what was typed there, behind the dialog.
  if (!current.authenticated && !known) return <LogIn />;
  return (
    <>
      {developer.current ? <Developer><Theme /></Developer> : <Frame />}
      {!current.authenticated && <LogIn again developer={developer.current} />}
      <Toasts />
    </>
  );
}

function Unreachable() {
  return <Notice tone="bad" title="The gateway does not answer">It is asked again every two seconds.</Notice>;
}

function LogIn({ again, developer }: { again?: boolean; developer?: boolean }) {
  const [key, setKey] = useState('');
  const [error, setError] = useState('');
  const [busy, setBusy] = useState(false);
  const [as, setAs] = useState<'key' | 'token'>(developer ? 'token' : 'key');
  const oidc = useStore(session)?.oidc;
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (again) ref.current?.showModal();
  }, []);
  const enter = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError('');
    try {
      await logIn(key, as);
      setKey('');
      if (again) toast('Welcome back');
    } catch (fault) {
      setError(asApiError(fault).message);
    } finally {
      setBusy(false);
    }
  };
  const form = (
    <form class="login-card" onSubmit={enter}>
      <Logo />
      <h1>{again ? 'The session has ended' : 'Weir'}</h1>
      <p class="hint">{again ? 'Log in again; what you have typed is still there.' : as === 'key' ? 'Log in with a key of the Admin API.' : 'Log in with your token as a developer.'}</p>
      {oidc && !again && <a class="button" href="/weir/v1/session/oidc">Log in at your identity provider</a>}
      <Field label={as === 'key' ? 'Key' : 'Token'} error={error} hint={as === 'key' ? 'Shown once at the first start, or given by WEIR_ADMIN_KEY. The viewer key shows everything and changes nothing.' : 'Given to you by whoever looks after the gateway. It opens your own applications, keys and usage.'}>
        {(id, about) => <input id={id} aria-describedby={about} aria-invalid={!!error} class="input" type="password" autocomplete="current-password" autoFocus value={key} onInput={(event) => setKey(event.currentTarget.value)} />}
      </Field>
      <Button type="submit" tone="primary" busy={busy} disabled={!key}>Log in</Button>
      <Button tone="quiet" onClick={() => { setAs(as === 'key' ? 'token' : 'key'); setError(''); }}>{as === 'key' ? 'I am a developer' : 'I have a key of the Admin API'}</Button>
    </form>
  );
  return again ? <dialog ref={ref} class="login-again" onCancel={(event) => event.preventDefault()}>{form}</dialog> : <main class="login">{form}</main>;
}

function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" width="28" height="28" aria-hidden="true"><rect width="32" height="32" rx="8" class="logo-ground" /><path d="M6 11c2.5 0 2.5 2 5 2s2.5-2 5-2 2.5 2 5 2 2.5-2 5-2M6 17h20M9 17v7M16 17v7M23 17v7" fill="none" stroke="#fff" stroke-width="2.4" stroke-linecap="round" /></svg>
  );
}

const TOOLS: [string, string, string][] = [
  ['overview', 'Overview', 'Observe'], ['tail', 'Live requests', 'Observe'], ['usage', 'Usage', 'Observe'], ['problems', 'Problems', 'Observe'],
  ['explain', 'Explain', 'Observe'],
];

function Frame() {
  const place = usePlace();
  const [open, setOpen] = useState(false);
  const info = useStore(about);
  const who = useStore(session);
  const up = useStore(reachable);
  const found = useStore(problems)?.problems.length;
  const main = useRef<HTMLElement>(null);
  const [page = 'overview', second = ''] = place.path;
  const where = place.path.join('/');
  const first = useRef(true);
  useEffect(() => {
    setOpen(false);
    document.title = `${title(place.path)} – Weir`;
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
    scrollTo(0, 0);
  }, [where]);
  useEffect(() => {
    const keys = (event: KeyboardEvent) => {
      const typing = (event.target as HTMLElement).closest('input, textarea, select, dialog');
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === '/') {
        const search = document.querySelector<HTMLInputElement>('[data-search]');
        event.preventDefault();
        if (search) search.focus();
        else go(['list', 'routes']);
      }
    };
    addEventListener('keydown', keys);
    return () => removeEventListener('keydown', keys);
  }, []);
  const kong = info?.family === 'kong';
  const tyk = info?.family === 'tyk';
  const threescale = info?.family === '3scale';
  const kind = page === 'list' || page === 'new' ? second : page === 'entity' ? second : page === 'resource' ? (place.path.includes('credentials') ? 'credentials' : second) : '';
  const link = (path: string[], icon: string, label: string, is: boolean, number?: number) => (
    <li key={label}><a href={href(path)} aria-current={is ? 'page' : undefined}><Icon name={icon} /><span>{label}</span>{number !== undefined && number > 0 && <span class="nav-count">{count(number)}</span>}</a></li>
  );
  const groups = ['Traffic', 'Callers', 'Security', 'Shared'] as const;
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to the content</a>
      <header class="top">
        <Button icon="menu" tone="quiet" title={open ? 'Close the navigation' : 'Open the navigation'} onClick={() => setOpen(!open)} />
        <Logo /><strong>Weir</strong>
      </header>
      {open && <div class="shade" onClick={() => setOpen(false)} />}
      <nav class={`side ${open ? 'open' : ''}`} aria-label="Pages">
        <div class="brand"><Logo /><div><strong>Weir{(kong || tyk || threescale) && <span class="family"> for {kong ? 'Kong' : tyk ? 'Tyk' : '3scale'}</span>}</strong><div class="hint">{info ? `${info.host} · ${info.version}` : ''}</div></div></div>
        <ul>{TOOLS.map(([id, label]) => link(id === 'overview' ? [] : [id], id, label, page === id, id === 'problems' ? found : undefined))}</ul>
        {kong && (['Traffic', 'Callers', 'Security'] as const).map((group) => (
          <div key={group}>
            <h2>{group}</h2>
            <ul>{KONG.filter((one) => one.group === group).map((one) => link(['list', one.kind], one.icon, one.label, kind === one.kind, info?.counts[one.kind]))}</ul>
          </div>
        ))}
        {tyk && (['Traffic', 'Callers'] as const).map((group) => (
          <div key={group}>
            <h2>{group}</h2>
            <ul>{TYK.filter((one) => one.group === group).map((one) => link(['list', one.kind], one.icon, one.label, kind === one.kind))}</ul>
          </div>
        ))}
        {threescale && <div><h2>Traffic</h2><ul>{link(['products'], 'services', 'Products', page === 'products' || page === 'product')}</ul></div>}
        {info?.threescale_backend && <div><h2>3scale</h2><ul>{link(['applications'], 'consumers', 'Applications', page === 'applications')}</ul></div>}
        {!kong && !tyk && !threescale && info && groups.map((group) => (
          <div key={group}>
            <h2>{group}</h2>
            <ul>
              {KINDS.filter((one) => one.group === group).map((one) => link(['list', one.kind], one.kind, one.label, kind === one.kind, info?.counts[one.kind]))}
              {group === 'Callers' && link(['keys'], 'keys', 'Plans and keys', page === 'keys')}
              {group === 'Shared' && link(['plugins'], 'plugins', 'Plugins', page === 'plugins')}
              {group === 'Shared' && link(['history'], 'history', 'History', page === 'history', undefined)}
            </ul>
          </div>
        ))}
        <div class="side-foot">
          <div class="who">{who?.name} <Badge>{who?.role}</Badge></div>
          <div class="actions"><Theme />{who?.key_required && <Button icon="out" tone="quiet" title="Log out" onClick={() => void logOut().catch((error) => toast(asApiError(error).message, 'bad'))} />}</div>
        </div>
      </nav>
      <main ref={main} id="main" tabIndex={-1}>
        {!up && <Unreachable />}
        {info?.read_only && !tyk && !['resource', 'applications'].includes(page) && <Notice title="Shown, not changed here">{info.read_only}</Notice>}
        <Content path={place.path} family={info?.family} />
      </main>
    </div>
  );
}

function title([page = 'overview', ...rest]: string[]): string {
  if (page === 'list' || page === 'new') return KINDS.find((one) => one.kind === rest[0])?.label ?? page;
  if (page === 'resource') return rest.join('/');
  return TOOLS.find(([id]) => id === page)?.[1] ?? page[0]!.toUpperCase() + page.slice(1);
}

function Content({ path, family }: { path: string[]; family?: string }) {
  const [page = 'overview', ...rest] = path;
  if (family === undefined) return <Loading />;
  const [kong, tyk] = [family === 'kong', family === 'tyk'];
  if (tyk && ['list', 'new', 'entity'].includes(page)) {
    if (!TYK.some((one) => one.kind === rest[0])) return <Lost />;
    return page === 'list' ? <TykList key={rest[0]} kind={rest[0]!} /> : <TykEntity key={rest.join('/')} kind={rest[0]!} id={page === 'entity' ? rest.slice(1).join('/') : undefined} />;
  }
  if (kong && ['list', 'new', 'entity'].includes(page)) {
    if (!KONG.some((one) => one.kind === rest[0])) return <Lost />;
    return page === 'list' ? <KongList key={rest[0]} kind={rest[0]!} /> : <KongEntity key={rest.join('/')} kind={rest[0]!} id={page === 'entity' ? rest.slice(1).join('/') : undefined} />;
  }
  if (family === '3scale' && page === 'products') return <Products />;
  if (family === '3scale' && page === 'product') return <Product key={rest.join('/')} id={rest.join('/')} />;
  if (page === 'applications' && about.value?.threescale_backend) return <Applications />;
  if ((kong || tyk) && ['resource', 'keys', 'history', 'plugins'].includes(page)) return <Lost />;
  switch (page) {
    case 'overview': return <Overview />;
    case 'list': return KINDS.some((one) => one.kind === rest[0]) ? <List key={rest[0]} kind={rest[0]!} /> : <Lost />;
    case 'new': return <NewPage kind={rest[0] ?? ''} />;
    case 'resource': return <ResourcePage key={rest.join('/')} resourceKey={rest.join('/')} />;
    case 'explain': return <Explain />;
    case 'usage': return <Usage />;
    case 'keys': return <Keys />;
    case 'history': return <History />;
    case 'problems': return <Problems />;
    case 'tail': return <Tail />;
    case 'plugins': return <Plugins />;
    default: return <Lost />;
  }
}

function Lost() {
  return <Notice tone="warn" title="There is no such page"><a href={href([])}>Overview</a></Notice>;
}

type Choice = 'auto' | 'light' | 'dark';

function Theme() {
  const [choice, setChoice] = useState<Choice>(() => (localStorage.getItem('weir-theme') as Choice) ?? 'auto');
  const dark = choice === 'dark' || (choice === 'auto' && matchMedia('(prefers-color-scheme: dark)').matches);
  useEffect(() => {
    const media = matchMedia('(prefers-color-scheme: dark)');
    const apply = () => {
      document.documentElement.dataset.theme = choice === 'auto' ? (media.matches ? 'dark' : 'light') : choice;
      themes.value += 1;
    };
    apply();
    media.addEventListener('change', apply);
    return () => media.removeEventListener('change', apply);
  }, [choice]);
  const next = dark ? 'light' : 'dark';
  return <Button icon={dark ? 'sun' : 'moon'} tone="quiet" title={`Use ${next} colours`} onClick={() => { localStorage.setItem('weir-theme', next); setChoice(next); }} />;
}
