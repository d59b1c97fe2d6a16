// A developer's own page: applications with their keys, what they have used, and the APIs that they may call.
import { useState } from 'preact/hooks';
import { get, logOut, query, request, session, type ApiError, type Json } from '../api';
import { Chart, everyStep } from '../chart';
import { asApiError, Badge, Button, Card, Chips, copy, Dialog, Empty, Failure, Field, Loading, Page, Segments, toast, useLoad, useStore, type Children } from '../controls';
import { ago, bytes, count, ms, span } from '../format';
import { Icon } from '../icons';

const RANGES = [{ id: '-1h', label: '1h' }, { id: '-24h', label: '24h' }, { id: '-30d', label: '30d' }];
const STEPS: Record<string, [string, number]> = { '-1h': ['minute', 60], '-24h': ['minute', 60], '-30d': ['day', 86400] };

export function Developer({ children }: { children: Children }) {
  const who = useStore(session);
  const me = useLoad(() => get('/weir/v1/self'), [who?.authenticated]);
  return (
    <main class="developer" id="main">
      <Page title={me.data?.name ?? me.data?.id ?? 'Developer'} hint="Your applications, their keys and usage, and the APIs that you may call."
        actions={<>{children}<Button icon="out" onClick={() => void logOut().catch((error) => toast(asApiError(error).message, 'bad'))}>Log out</Button></>}>
        {me.error && who?.authenticated && <Failure error={me.error} />}
        {!me.data && !me.error && <Loading />}
        {me.data && <Applications me={me.data} />}
        {me.data && <Own apps={me.data.applications} />}
        {me.data && <Products products={me.data.products} />}
      </Page>
    </main>
  );
}

function Applications({ me }: { me: Json }) {
  const apps = useLoad(() => get('/weir/v1/self/applications'), []);
  const quotas = useLoad(() => get('/weir/v1/self/quotas'), []);
  const [making, setMaking] = useState(false);
  const [shown, setShown] = useState<Json>(null);
  const act = async (method: string, path: string, body: Json, done: string) => {
    try {
      const answer = await request(method, `/weir/v1/self/applications${path}`, body);
      if (answer.body?.key && answer.body?.id) setShown(answer.body);
      toast(done);
      apps.reload();
      quotas.reload();
      return true;
    } catch (error) {
      toast(asApiError(error).message, 'bad');
      return false;
    }
  };
  const counts = (id: string): Json[] => quotas.data?.applications.find((one: Json) => one.id === id)?.counts ?? [];
  const all: Json[] = apps.data?.applications ?? [];
  return (
    <>
      <Card title="Applications" class="flush" actions={<Button tone="primary" icon="plus" disabled={all.length >= me.max_applications} onClick={() => setMaking(true)}>New application</Button>}>
        {apps.error && <Failure error={apps.error} />}
        {!apps.data && !apps.error && <Loading />}
        {apps.data && !all.length && <Empty icon="consumers" title="No application yet">An application has the keys with which a program of yours calls APIs.</Empty>}
        {all.map((app) => (
          <section key={app.id} class="padded application" aria-label={`Application ${app.id}`}>
            <header class="card-head">
              <h3>{app.desc || app.id} {app.desc && <span class="hint">{app.id}</span>} {app.suspended && <Badge tone="bad">suspended</Badge>}</h3>
              <div class="actions">
                <Button icon="plus" onClick={() => void act('POST', `/${encodeURIComponent(app.id)}/keys`, {}, 'The key works')}>New key</Button>
                <Button tone="quiet" icon="trash" title={`Remove ${app.id}`} onClick={() => { if (confirm(`Remove the application ${app.id} and all its keys? Calls with them are refused at once.`)) void act('DELETE', `/${encodeURIComponent(app.id)}`, undefined, 'Removed'); }} />
              </div>
            </header>
            <p>Plans: {app.plans.length ? <Chips items={app.plans} /> : <span class="faint">none</span>}</p>
            {counts(app.id).map((limit, at) => (
              <p key={at}><meter class="bar" min={0} max={limit.limit || 1} value={limit.used} aria-label={`${limit.used} of ${limit.limit} used`} />{count(limit.used)} of {count(limit.limit)} a {limit.per}{limit.resets_in > 0 && <span class="hint">, begins anew in {span(limit.resets_in)}</span>}</p>
            ))}
            {app.keys.length ? (
              <table class="plain">
                <thead><tr><th>Key</th><th class="num">Changed</th><th><span class="sr">Actions</span></th></tr></thead>
                <tbody>
                  {app.keys.map((key: Json) => (
                    <tr key={key.id}>
                      <td>{key.id}{(key.name || key.desc) && <div class="hint">{key.name ?? key.desc}</div>} {key.plan?.suspended && <Badge tone="bad">suspended</Badge>}</td>
                      <td class="num">{ago(key.update_time)}</td>
                      <td class="row-actions">
                        <Button tone="quiet" onClick={() => { if (confirm('Replace the key by a new one? The old one stops working at once.')) void act('PATCH', `/${encodeURIComponent(app.id)}/keys/${encodeURIComponent(key.id)}`, { renew: true }, 'Renewed'); }}>Renew</Button>
                        <Button tone="quiet" icon="trash" title={`Take back ${key.id}`} onClick={() => { if (confirm(`Take back the key ${key.id}? Calls with it are refused at once.`)) void act('DELETE', `/${encodeURIComponent(app.id)}/keys/${encodeURIComponent(key.id)}`, undefined, 'Taken back'); }} />
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            ) : <p class="hint">No key yet.</p>}
          </section>
        ))}
      </Card>
      {making && <Make plans={me.plans} onClose={() => setMaking(false)} onMake={async (body) => { if (await act('POST', '', body, 'The application is there')) setMaking(false); }} />}
      {shown && (
        <Dialog title="The key is shown this once" onClose={() => setShown(null)} actions={<Button tone="primary" onClick={() => setShown(null)}>I have it</Button>}>
          <div class="pair"><code class="secret">{shown.key}</code><Button icon="copy" onClick={() => void copy(shown.key)}>Copy</Button></div>
        </Dialog>
      )}
    </>
  );
}

function Make({ plans, onClose, onMake }: { plans: string[]; onClose: () => void; onMake: (body: Json) => Promise<void> }) {
  const [desc, setDesc] = useState('');
  const [chosen, setChosen] = useState<string[]>(plans.slice(0, 1));
  const [busy, setBusy] = useState(false);
  const make = async (event?: Event) => {
    event?.preventDefault();
    setBusy(true);
    await onMake({ ...(desc ? { desc } : {}), plans: chosen });
    setBusy(false);
  };
  return (
    <Dialog title="New application" onClose={onClose} actions={<><Button onClick={onClose}>Back</Button><Button tone="primary" busy={busy} onClick={() => void make()}>Make it</Button></>}>
      <form onSubmit={make} class="form">
        <Field label="Description">{(field) => <input class="input" id={field} autoFocus value={desc} onInput={(event) => setDesc(event.currentTarget.value)} />}</Field>
        <fieldset class="field"><legend>Plans</legend>
          <div class="chips">{plans.map((plan) => <label key={plan} class={`toggle ${chosen.includes(plan) ? 'on' : ''}`}><input type="checkbox" class="sr" checked={chosen.includes(plan)} onChange={() => setChosen(chosen.includes(plan) ? chosen.filter((one) => one !== plan) : [...chosen, plan])} />{plan}</label>)}</div>
        </fieldset>
        <button class="sr" type="submit" tabIndex={-1} aria-hidden="true">Make it</button>
      </form>
    </Dialog>
  );
}

function Own({ apps }: { apps: string[] }) {
  const [from, setFrom] = useState('-24h');
  const [step, length] = STEPS[from]!;
  const table = useLoad(() => get('/weir/v1/self/usage' + query({ from, group_by: 'consumer,api', limit: 200 })), [from, apps.join()]);
  const line = useLoad(() => get('/weir/v1/self/usage' + query({ from, step, limit: 10000 })), [from, apps.join()]);
  const error: ApiError | undefined = table.error ?? line.error;
  const shown = everyStep(line.data, length);
  return (
    <Card title="Usage" actions={<>
      <Segments label="Time range" value={from} onChange={setFrom} options={RANGES} />
      <a class="button" download="usage.csv" href={'/weir/v1/self/usage' + query({ from, group_by: 'consumer,api', limit: 10000, format: 'csv' })}><Icon name="export" size={16} />CSV</a>
    </>}>
      {error && (error.status === 404 ? <Empty icon="usage" title="Usage is not recorded here" /> : <Failure error={error} />)}
      {line.data && !shown.empty && (
        <Chart label="Requests a second" sync="own" times={shown.times} range={shown.range} data={[shown.rate('requests'), shown.rate('client_errors'), shown.rate('server_errors')]}
          curves={[{ label: 'all', colour: 'accent', fill: true }, { label: '4xx', colour: 'warn' }, { label: '5xx', colour: 'bad' }]} format={count} floor={0.01} />
      )}
      {table.data && (table.data.rows.length ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table">
          <table>
            <thead><tr><th>Application</th><th>API</th><th class="num">Requests</th><th class="num">4xx</th><th class="num">5xx</th><th class="num">Sent</th><th class="num">p95</th></tr></thead>
            <tbody>{table.data.rows.map((row: Json, at: number) => <tr key={at}><td>{row.consumer}</td><td>{row.api || 'none'}</td><td class="num">{count(row.requests)}</td><td class="num">{row.client_errors}</td><td class="num">{row.server_errors}</td><td class="num">{bytes(row.bytes_sent)}</td><td class="num">{ms(row.p95_ms)}</td></tr>)}</tbody>
          </table>
        </div>
      ) : <Empty icon="usage" title="No request in this time" />)}
    </Card>
  );
}

function Products({ products }: { products: Json[] }) {
  const [shown, setShown] = useState<string | null>(null);
  return (
    <Card title="APIs that you may call" class="flush">
      {shown && <Documents api={shown} onClose={() => setShown(null)} />}
      {products.length ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table">
          <table>
            <thead><tr><th>API</th><th>Plans</th><th>Limits</th></tr></thead>
            <tbody>
              {products.map((one) => (
                <tr key={one.api}>
                  <td><strong>{one.name ?? one.api}</strong>{one.desc && <div class="hint">{one.desc}</div>} {one.documented && <Button tone="quiet" onClick={() => setShown(one.api)}>Documentation</Button>}</td>
                  <td><Chips items={one.plans.map((plan: Json) => plan.name ?? plan.id)} /></td>
                  <td>{one.plans.flatMap((plan: Json) => plan.limits.map((limit: Json) => `${count(limit.count)} a ${limit.per}`)).join(', ') || <span class="faint">none</span>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : <Empty icon="services" title="No API is open to you yet" />}
    </Card>
  );
}

const METHODS = ['get', 'put', 'post', 'delete', 'options', 'head', 'patch', 'trace'];

// The operations of the OpenAPI documents of an API.
function Documents({ api, onClose }: { api: string; onClose: () => void }) {
  const path = `/weir/v1/self/products/${encodeURIComponent(api)}/openapi`;
  const told = useLoad(() => get(path), [api]);
  return (
    <Dialog title={`Documentation of ${api}`} wide onClose={onClose} actions={<>
      <a class="button" download={`${api}.openapi.json`} href={path}><Icon name="export" size={16} />JSON</a>
      <Button tone="primary" onClick={onClose}>Close</Button>
    </>}>
      {told.error && <Failure error={told.error} />}
      {!told.data && !told.error && <Loading />}
      {told.data?.documents.map((one: Json) => <Document key={one.of} document={one.document} />)}
    </Dialog>
  );
}

// The thing at `#/…`, where a part refers to it.
function resolved(document: Json, part: Json): Json {
  const place = typeof part?.$ref === 'string' && part.$ref.startsWith('#/') ? part.$ref.slice(2).split('/') : null;
  if (!place) return part ?? {};
  return place.reduce((at: Json, name: string) => at?.[name.replaceAll('~1', '/').replaceAll('~0', '~')], document) ?? {};
}

function typeOf(document: Json, schema: Json): string {
  const found = resolved(document, schema);
  const type = Array.isArray(found.type) ? found.type.join(' or ') : found.type;
  if (type === 'array') return `list of ${typeOf(document, found.items)}`;
  return type ?? (schema?.$ref ? String(schema.$ref).split('/').pop()! : 'any');
}

function Document({ document }: { document: Json }) {
  const operations = Object.entries<Json>(document.paths ?? {}).flatMap(([path, item]) =>
    METHODS.filter((method) => item?.[method]).map((method) => ({ path, method, item, operation: item[method] })));
  return (
    <section>
      <h3>{document.info?.title} <span class="hint">{document.info?.version}</span></h3>
      {document.info?.description && <p>{document.info.description}</p>}
      {!operations.length && <p class="hint">It describes no operation.</p>}
      {operations.map(({ path, method, item, operation }) => {
        const parameters = [...(item.parameters ?? []), ...(operation.parameters ?? [])].map((one: Json) => resolved(document, one));
        const body = resolved(document, operation.requestBody);
        return (
          <details key={`${method} ${path}`}>
            <summary><code>{method.toUpperCase()} {path}</code> {operation.summary} {operation.deprecated && <Badge tone="warn">deprecated</Badge>}</summary>
            {operation.description && <p>{operation.description}</p>}
            {parameters.length > 0 && (
              <table class="plain">
                <thead><tr><th>Parameter</th><th>In</th><th>Type</th><th>Meaning</th></tr></thead>
                <tbody>{parameters.map((one: Json, at: number) => <tr key={at}><td><code>{one.name}</code>{one.required && <span class="hint"> required</span>}</td><td>{one.in}</td><td>{typeOf(document, one.schema ?? one)}</td><td>{one.description}</td></tr>)}</tbody>
              </table>
            )}
            {body.content && <p>Body{body.required && ', required'}: {Object.entries<Json>(body.content).map(([media, one]) => `${media} (${typeOf(document, one.schema)})`).join(', ')}</p>}
            <table class="plain">
              <thead><tr><th>Answer</th><th>Meaning</th></tr></thead>
              <tbody>{Object.entries<Json>(operation.responses ?? {}).map(([status, one]) => <tr key={status}><td>{status}</td><td>{resolved(document, one).description}</td></tr>)}</tbody>
            </table>
          </details>
        );
      })}
    </section>
  );
}
