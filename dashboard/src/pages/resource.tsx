import { useEffect, useMemo, useState } from 'preact/hooks';
import { about, ApiError, get, query, refreshAbout, refusal, request, resourcePath, type Finding, type Json, type Resource } from '../api';
import { asApiError, Badge, Button, Card, copy, Dialog, Diff, Empty, Failure, Field, Findings, Loading, Notice, Page, Tabs, toast, useLoad, useStore } from '../controls';
import { bare, equal } from '../diff';
import { JsonField, ObjectForm } from '../form';
import { ago, count, ms, percent } from '../format';
import { Icon } from '../icons';
import { idOf, kindInfo, kindOf, type KindInfo } from '../kinds';
import { go, href, resourceHref, setGuard, setQuery, usePlace } from '../router';
import { plain, pluginSchema, resourceSchema, type Schema } from '../schema';
import { summary } from './overview';

type Tab = 'form' | 'document' | 'used' | 'usage' | 'history';

export function ResourcePage({ resourceKey }: { resourceKey: string }) {
  const kind = kindOf(resourceKey);
  const info = kindInfo(kind);
  const { data, error, reload } = useLoad(() => get<Resource>(resourcePath(resourceKey)), [resourceKey]);
  if (!info) return <Empty title={`There is no kind ${kind}`} />;
  if (error && !data) {
    return (
      <Page title={resourceKey}>
        <Card><Empty icon={kind} title={error.status === 404 ? `There is no ${info.one} ${idOf(resourceKey)}` : error.message}><a class="button" href={href(['list', kind])}>All {info.label.toLowerCase()}</a></Empty></Card>
      </Page>
    );
  }
  if (!data) return <Loading />;
  return <Editor key={`${data.key} ${data.modified}`} info={info} stored={data} onDone={reload} />;
}

export function NewPage({ kind }: { kind: string }) {
  const info = kindInfo(kind);
  const place = usePlace();
  const from = place.query.get('from');
  const { data, loading } = useLoad(async () => (from ? bare((await get<Resource>(resourcePath(from))).value) : null), [from]);
  if (!info) return <Empty title={`There is no kind ${kind}`} />;
  if (loading && from) return <Loading />;
  return <Editor key={kind + from} info={info} copied={data} onDone={() => undefined} />;
}

function useSchema(info: KindInfo, key: string | undefined): Schema | undefined {
  const { data } = useLoad(async () => {
    try {
      return info.kind === 'plugin_metadata' && key ? await pluginSchema(idOf(key), 'metadata') : await resourceSchema(info.name);
    } catch {
      return { type: 'object' };
    }
  }, [info.kind, key]);
  return data;
}

function Editor({ info, stored, copied, onDone }: { info: KindInfo; stored?: Resource; copied?: Json; onDone: () => void }) {
  const place = usePlace();
  const isNew = !stored;
  const before = useMemo(() => (stored ? without(bare(stored.value), info.idField) : undefined), [stored]);
  const [value, setValue] = useState<Json>(() => {
    const first = before ?? copied ?? info.blank;
    if (!isNew) return first;
    const { [info.idField]: _, ...rest } = first;
    return rest;
  });
  const [id, setId] = useState('');
  const [text, setText] = useState<{ text: string; error?: string } | null>(null);
  const [reviewing, setReviewing] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const tab = (place.query.get('tab') as Tab) ?? 'form';
  const schema = useSchema(info, stored?.key);
  const refused = refusal(info.kind);
  const changed = isNew || !equal(before, value);
  const key = stored?.key ?? keyOf(info, id);
  useStore(about);

  // What the gateway would say, while the change is being typed.
  const [doubts, setDoubts] = useState<Finding[]>([]);
  useEffect(() => {
    if (!changed || refused || !key || text?.error) return setDoubts([]);
    let gone = false;
    const timer = setTimeout(() => {
      request('PUT', resourcePath(key) + '?dry_run=true', value).then(
        ({ body }) => !gone && setDoubts(body.diagnostics),
        (fault) => {
          const error = asApiError(fault);
          if (!gone && error.status === 400) setDoubts(error.findings.length ? error.findings : [{ severity: 'error', path: '', message: error.message }]);
        },
      );
    }, 500);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [value, key, text?.error]);

  useEffect(() => {
    setGuard(changed && !isNew && !refused ? () => confirm('Leave without saving the changes?') : null);
    return () => setGuard(null);
  }, [changed, refused]);
  useEffect(() => {
    const save = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key === 's') {
        event.preventDefault();
        if (changed && !refused) setReviewing(true);
      }
    };
    addEventListener('keydown', save);
    return () => removeEventListener('keydown', save);
  }, [changed, refused]);

  const choose = (next: Tab) => {
    setText(null);
    setQuery({ ...(place.query.get('from') ? { from: place.query.get('from')! } : {}), tab: next === 'form' ? '' : next });
  };
  const tabs: { id: Tab; label: string }[] = [{ id: 'form', label: 'Form' }, { id: 'document', label: 'Document' }];
  if (!isNew) {
    tabs.push({ id: 'used', label: 'Used by' });
    if (about.value?.usage && ['routes', 'services', 'consumers', 'plans', 'credentials'].includes(info.kind)) tabs.push({ id: 'usage', label: 'Usage' });
    tabs.push({ id: 'history', label: 'History' });
  }
  const off = value?.status === 0;
  const hasSwitch = ['routes', 'ssls'].includes(info.kind);
  return (
    <Page
      title={<><a class="crumb" href={href(['list', info.kind])}>{info.label}</a><span class="crumb-sep">/</span>{isNew ? `New ${info.one}` : idOf(stored.key)}</>}
      hint={!isNew && <>revision {stored.modified}{stored.value?.update_time && `, changed ${ago(stored.value.update_time)}`}{off && <> <Badge tone="warn">off</Badge></>}</>}
      actions={refused ? undefined : (
        <>
          {!isNew && hasSwitch && <Button onClick={() => { setValue({ ...value, status: off ? 1 : 0 }); }}>{off ? 'Switch on' : 'Switch off'}</Button>}
          {!isNew && <a class="button" href={href(['new', info.kind], { from: stored.key })}><Icon name="copy" size={16} />Duplicate</a>}
          {!isNew && <Button icon="trash" tone="danger" onClick={() => setDeleting(true)}>Delete</Button>}
          {!isNew && changed && <Button icon="undo" onClick={() => { setValue(before); setText(null); }}>Undo</Button>}
          <Button tone="primary" icon="check" disabled={!changed || !!text?.error || (isNew && !key)} onClick={() => setReviewing(true)}>{isNew ? 'Create' : 'Review and save'}</Button>
        </>
      )}>
      {refused && <Notice title="Read only">{refused}</Notice>}
      {isNew && <IdField info={info} id={id} onChange={setId} />}
      <Tabs tabs={tabs} current={tab} onChoose={choose} />
      <div class="doubts" aria-live="polite">{doubts.length > 0 && <Notice tone="warn" title="As it stands now"><Findings findings={doubts.slice(0, 8)} /></Notice>}</div>
      {tab === 'form' && (
        <Card class="padded">
          {schema ? <ObjectForm top schema={plain(schema, schema)} root={schema} value={value} onChange={setValue} disabled={!!refused}
            scope={['consumers', 'credentials', 'consumer_groups'].includes(info.kind) ? 'consumer' : info.kind === 'stream_routes' ? 'stream' : 'resource'} /> : <Loading />}
        </Card>
      )}
      {tab === 'document' && (
        <Card class="padded" title="JSON" actions={<Button icon="copy" tone="quiet" onClick={() => void copy(JSON.stringify(value, null, 2))}>Copy</Button>}>
          <DocumentEditor value={value} readOnly={!!refused} onChange={(next, error, typed) => { setText({ text: typed, error }); if (!error) setValue(next); }} />
        </Card>
      )}
      {tab === 'used' && stored && <UsedBy resourceKey={stored.key} />}
      {tab === 'usage' && stored && <Calls kind={info.kind} id={idOf(stored.key)} />}
      {tab === 'history' && stored && <HistoryOf resourceKey={stored.key} />}
      {reviewing && key && <Review info={info} resourceKey={key} before={before} now={isNew ? { ...value, [info.idField]: undefined } : value} modified={stored?.modified} onClose={() => setReviewing(false)}
        onSaved={(revision) => { setGuard(null); setReviewing(false); toast(`Saved as revision ${revision}`); void refreshAbout(); if (isNew) go(['resource', ...key.split('/')]); else onDone(); }}
        onTheirs={() => { setReviewing(false); onDone(); }} />}
      {deleting && stored && <Deletion info={info} stored={stored} onClose={() => setDeleting(false)} />}
    </Page>
  );
}

function without(value: Json, field: string): Json {
  const { [field]: _, ...rest } = value ?? {};
  return rest;
}

function keyOf(info: KindInfo, id: string): string | undefined {
  const own = id.trim();
  if (!own) return undefined;
  if (info.kind === 'credentials') {
    const [consumer, credential] = own.split('/');
    return consumer && credential ? `consumers/${consumer}/credentials/${credential}` : undefined;
  }
  return `${info.kind}/${own}`;
}

function IdField({ info, id, onChange }: { info: KindInfo; id: string; onChange: (id: string) => void }) {
  const hints: Record<string, string> = { credentials: 'CONSUMER/ID, such as jack/phone', secrets: 'MANAGER/ID, such as vault/1', plugin_metadata: 'the name of the plugin', consumers: 'letters, digits, - and _' };
  return (
    <Card class="padded">
      <Field label={info.idField === 'username' ? 'username' : 'id'} hint={hints[info.kind] ?? 'letters, digits, -, _ and .'}>
        {(own, described) => (
          <div class="pair">
            <input class="input" id={own} aria-describedby={described} autoFocus spellcheck={false} value={id} onInput={(event) => onChange(event.currentTarget.value)} />
            {!['credentials', 'secrets', 'plugin_metadata', 'consumers'].includes(info.kind) && <Button onClick={() => onChange(`${info.name.replace(/_/g, '-')}-${Math.random().toString(36).slice(2, 8)}`)}>Make one</Button>}
          </div>
        )}
      </Field>
    </Card>
  );
}

function DocumentEditor({ value, readOnly, onChange }: { value: Json; readOnly: boolean; onChange: (value: Json, error: string | undefined, text: string) => void }) {
  const [text, setText] = useState(() => JSON.stringify(value, null, 2));
  const [error, setError] = useState<string>();
  const type = (next: string) => {
    setText(next);
    try {
      const parsed = JSON.parse(next);
      const wrong = parsed === null || typeof parsed !== 'object' || Array.isArray(parsed) ? 'expected an object' : undefined;
      setError(wrong);
      onChange(parsed, wrong, next);
    } catch (fault) {
      setError((fault as Error).message);
      onChange(undefined, (fault as Error).message, next);
    }
  };
  const indent = (event: KeyboardEvent) => {
    if (event.key === 'Escape') (event.currentTarget as HTMLElement).blur();
    if (event.key !== 'Tab' || event.shiftKey || event.ctrlKey || event.altKey) return;
    const area = event.currentTarget as HTMLTextAreaElement;
    event.preventDefault();
    area.setRangeText('  ', area.selectionStart, area.selectionEnd, 'end');
    type(area.value);
  };
  return (
    <>
      <textarea class="input mono editor" aria-label="Document as JSON; Escape leaves the editor" rows={Math.min(34, Math.max(14, text.split('\n').length + 1))} spellcheck={false} readOnly={readOnly} value={text} onKeyDown={indent} onInput={(event) => type(event.currentTarget.value)} />
      {error ? <p class="error-text" role="alert">{error}</p> : <p class="hint">Times and the id are set by the gateway. Secrets that were not changed may stay as they are shown.</p>}
    </>
  );
}

interface Tried {
  findings: Finding[];
  error?: ApiError;
}

/** Shows what a change does before it is made; on 412 both versions. */
export function Review({ info, resourceKey, before, now, modified, onClose, onSaved, onTheirs }: {
  info: KindInfo; resourceKey: string; before: Json; now: Json; modified?: number; onClose: () => void; onSaved: (revision: number) => void; onTheirs: () => void;
}) {
  const [tried, setTried] = useState<Tried | null>(null);
  const [busy, setBusy] = useState(false);
  const [theirs, setTheirs] = useState<Resource | null>(null);
  const path = resourcePath(resourceKey);
  const condition = (of: number | undefined): Record<string, string> => (of === undefined ? { 'If-None-Match': '*' } : { 'If-Match': `"${of}"` });
  const uses = useLoad(() => get('/weir/v1/references' + query({ key: resourceKey })), [resourceKey]);

  const conflict = async (error: ApiError) => {
    if (error.status !== 412) return false;
    try {
      setTheirs(await get<Resource>(path));
    } catch {
      setTheirs({ key: resourceKey, value: null, created: 0, modified: 0 });
    }
    return true;
  };
  useEffect(() => {
    request('PUT', path + '?dry_run=true', now, condition(modified)).then(
      ({ body }) => setTried({ findings: body.diagnostics }),
      async (fault) => {
        const error = asApiError(fault);
        if (!(await conflict(error))) setTried({ findings: error.findings, error });
      },
    );
  }, []);
  const save = async (over?: number) => {
    setBusy(true);
    try {
      const { body } = await request('PUT', path, now, condition(over ?? modified));
      onSaved(body.revision);
    } catch (fault) {
      const error = asApiError(fault);
      if (!(await conflict(error))) setTried({ findings: error.findings, error });
    } finally {
      setBusy(false);
    }
  };

  if (theirs) {
    const gone = theirs.value === null;
    return (
      <Dialog wide title="Somebody else changed it meanwhile" onClose={onClose}
        actions={<>
          <Button onClick={onTheirs}>Discard mine, show theirs</Button>
          {!gone && <Button tone="danger" busy={busy} onClick={() => void save(theirs.modified)}>Replace theirs by mine</Button>}
        </>}>
        <Notice tone="warn">{gone ? <>{resourceKey} was deleted.</> : <>{resourceKey} is at revision {theirs.modified} now; {modified === undefined ? 'it did not exist when you began' : `you began with ${modified}`}.</>}</Notice>
        <div class="grid two">
          <div><h3>Their change</h3><Diff old={before} now={without(bare(theirs.value), info.idField)} /></div>
          <div><h3>Your change</h3><Diff old={before} now={now} /></div>
        </div>
        {!gone && <><h3>What replacing theirs does</h3><Diff old={without(bare(theirs.value), info.idField)} now={now} /></>}
      </Dialog>
    );
  }
  const used: Json[] = uses.data?.references ?? [];
  const bad = !tried || !!tried.error;
  return (
    <Dialog wide title={modified === undefined ? `Create ${info.one} ${idOf(resourceKey)}` : `Save ${info.one} ${idOf(resourceKey)}`} onClose={onClose}
      actions={<><Button onClick={onClose}>Back</Button><Button tone="primary" icon="check" disabled={bad} busy={busy || !tried} onClick={() => void save()}>{modified === undefined ? 'Create' : 'Save'}</Button></>}>
      {!tried && <Loading />}
      {tried?.error && <Failure error={tried.error} />}
      {tried && !tried.error && (tried.findings.length ? <Notice tone="warn" title="The gateway takes it, with warnings"><Findings findings={tried.findings} /></Notice> : <Notice tone="good" title="The gateway has checked the change and takes it" />)}
      <Diff old={before} now={now} />
      {used.length > 0 && <p class="hint">Affects {uses.data.total} that refer to it: {used.slice(0, 8).map((one) => <span key={one.key}><code>{one.key}</code> </span>)}{uses.data.total > 8 && '…'}</p>}
    </Dialog>
  );
}

function Deletion({ info, stored, onClose }: { info: KindInfo; stored: Resource; onClose: () => void }) {
  const uses = useLoad(() => get('/weir/v1/references' + query({ key: stored.key })), [stored.key]);
  const [error, setError] = useState<ApiError>();
  const [busy, setBusy] = useState(false);
  const remove = async () => {
    setBusy(true);
    try {
      const { body } = await request('DELETE', resourcePath(stored.key), undefined, { 'If-Match': `"${stored.modified}"` });
      setGuard(null);
      toast(`Deleted with revision ${body.revision}; the history can bring it back`);
      void refreshAbout();
      go(['list', info.kind]);
    } catch (fault) {
      setError(asApiError(fault));
      setBusy(false);
    }
  };
  const used: Json[] = uses.data?.references ?? [];
  return (
    <Dialog title={`Delete ${info.one} ${idOf(stored.key)}?`} onClose={onClose}
      actions={<><Button onClick={onClose}>Keep it</Button><Button tone="danger" icon="trash" busy={busy} onClick={() => void remove()}>Delete</Button></>}>
      {error && <Failure error={error} />}
      {used.length > 0 ? (
        <Notice tone="warn" title={`${uses.data.total} refer to it`}>
          <ul>{used.slice(0, 10).map((one) => <li key={one.key}><a href={resourceHref(one.key)}>{one.key}</a></li>)}</ul>
        </Notice>
      ) : <p>Requests stop using it as soon as this is answered.</p>}
    </Dialog>
  );
}

function UsedBy({ resourceKey }: { resourceKey: string }) {
  const { data, error } = useLoad(() => get('/weir/v1/references' + query({ key: resourceKey })), [resourceKey]);
  if (error) return <Card><Failure error={error} /></Card>;
  if (!data) return <Loading />;
  return (
    <Card class="flush">
      {data.references.length ? (
        <table>
          <thead><tr><th>Resource</th><th>Name</th></tr></thead>
          <tbody>{data.references.map((one: Json) => <tr key={one.key}><td><a href={resourceHref(one.key)}>{one.key}</a></td><td>{one.name ?? ''}</td></tr>)}</tbody>
        </table>
      ) : <Empty icon="protos" title="Nothing refers to it" />}
      {data.total > data.references.length && <p class="hint padded">and {data.total - data.references.length} more</p>}
    </Card>
  );
}

function Calls({ kind, id }: { kind: string; id: string }) {
  const own = id.split('/').at(-1)!;
  const filter = { routes: 'route', services: 'api', consumers: 'consumer', plans: 'plan', credentials: 'key' }[kind]!;
  const { data, error } = useLoad(() => get('/weir/v1/usage' + query({ from: '-24h', [filter]: own, group_by: kind === 'consumers' ? 'api,status' : 'consumer,status', limit: 50 })), [kind, id]);
  if (error) return <Card><Failure error={error} /></Card>;
  if (!data) return <Loading />;
  const first = kind === 'consumers' ? 'api' : 'consumer';
  return (
    <Card title="Last 24 hours" class="flush" actions={<a href={href(['usage'], { [filter]: own, from: '-24h' })}>More</a>}>
      {data.rows.length ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table"><table>
          <thead><tr><th>{first}</th><th>Status</th><th class="num">Requests</th><th class="num">Mean</th><th class="num">p95</th></tr></thead>
          <tbody>{data.rows.map((row: Json, at: number) => <tr key={at}><td>{row[first] || <span class="faint">nobody</span>}</td><td>{row.status}</td><td class="num">{count(row.requests)}</td><td class="num">{ms(row.latency_ms)}</td><td class="num">{ms(row.p95_ms)}</td></tr>)}</tbody>
        </table></div>
      ) : <Empty icon="usage" title="No request in 24 hours" />}
      <p class="hint padded">{percent(data.rows.reduce((sum: number, row: Json) => sum + row.server_errors, 0) / Math.max(1, data.rows.reduce((sum: number, row: Json) => sum + row.requests, 0)))} server errors</p>
    </Card>
  );
}

function HistoryOf({ resourceKey }: { resourceKey: string }) {
  const { data, error } = useLoad(() => get('/weir/v1/history' + query({ key: resourceKey, limit: 30 })), [resourceKey]);
  if (error) return <Card><Empty icon="history" title="Earlier versions are not kept here">{error.message}</Empty></Card>;
  if (!data) return <Loading />;
  if (!data.commits.length) return <Card><Empty icon="history" title="Its changes are older than the history that is kept" /></Card>;
  return (
    <div class="stack">
      {data.commits.map((commit: Json) => {
        const own = commit.changes.find((change: Json) => change.key === resourceKey);
        return (
          <Card key={commit.revision} title={<><a href={href(['history'], { revision: String(commit.revision) })}>Revision {commit.revision}</a> <span class="hint">{commit.author ?? ''} {ago(commit.time)}</span></>}>
            {own && !own.omitted ? <Diff old={bare(own.old)} now={bare(own.new)} /> : summary(commit)}
          </Card>
        );
      })}
    </div>
  );
}

export { JsonField };
