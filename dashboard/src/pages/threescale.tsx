// Products of 3scale's family, as APIcast's configuration has them, and applications of the gateway's own backend. The file or
// the portal is what changes them.
import { useState } from 'preact/hooks';
import { about, get, query, resourcePath, type Json, type Resource } from '../api';
import { Badge, Button, Card, Chips, Empty, Failure, Loading, Page, useLoad } from '../controls';
import { count, span } from '../format';
import { Icon } from '../icons';
import { href, setQuery, usePlace } from '../router';

const WAYS: Record<string, string> = { 1: 'key', 2: 'id and key', oauth: 'OpenID Connect', oidc: 'OpenID Connect' };

/** The service in a resource; undefined for what stands for no product. */
const serviceOf = (resource: Resource): Json => resource.value.plugins?.service;
const way = (service: Json) => (service.proxy?.authentication_method === 'oidc' ? 'OpenID Connect' : WAYS[service.backend_version] ?? String(service.backend_version ?? 'key'));
const text = (value: Json) => (value === undefined || value === null ? '' : String(value));
const bare = (name: string) => name.replace(/^apicast\.policy\./, '');

export function Products() {
  const [words, setWords] = useState('');
  const { data, error } = useLoad(() => get<{ resources: Resource[] }>('/weir/v1/resources?kind=routes&page_size=500&q=' + encodeURIComponent(words)), [words]);
  const found = (data?.resources ?? []).filter(serviceOf);
  return (
    <Page title="Products" hint="APIs of APIcast's configuration: their hosts, mapping rules and policies.">
      <Card class="flush">
        <div class="toolbar"><label class="search"><Icon name="search" size={16} /><span class="sr">Search</span><input data-search type="search" placeholder="Search  ( / )" value={words} onInput={(event) => setWords(event.currentTarget.value)} /></label></div>
        {error && <Failure error={error} />}
        {!data && !error && <Loading />}
        {data && !found.length && <Empty icon="services" title={words ? `Nothing has “${words}” in it` : 'No product yet'} />}
        {found.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Table">
            <table>
              <thead><tr><th>Product</th><th>Hosts</th><th>Upstream</th><th>Credentials</th><th class="num">Mapping rules</th></tr></thead>
              <tbody>
                {found.map((one) => {
                  const service = serviceOf(one);
                  return (
                    <tr key={one.key}>
                      <td class="id"><a href={href(['product', service.id])}>{service.system_name || service.id}</a><div class="hint">{service.id}</div></td>
                      <td><Chips items={service.proxy?.hosts ?? []} /></td>
                      <td>{text(service.proxy?.api_backend)}</td>
                      <td>{way(service)}</td>
                      <td class="num">{service.proxy?.proxy_rules?.length ?? 0}</td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
        )}
      </Card>
    </Page>
  );
}

export function Product({ id }: { id: string }) {
  const { data, error } = useLoad(() => get<Resource>(resourcePath(`routes/${id}`)), [id]);
  if (error) return <Page title={id}><Card><Empty icon="services" title={error.message}><a class="button" href={href(['products'])}>All products</a></Empty></Card></Page>;
  if (!data) return <Loading />;
  const service = serviceOf(data) ?? {};
  const proxy = service.proxy ?? {};
  const facts: [string, string][] = [
    ['Hosts', (proxy.hosts ?? []).join(', ')],
    ['Upstream', text(proxy.api_backend)],
    ['Host for the upstream', text(proxy.hostname_rewrite)],
    ['Backend', text(proxy.backend?.endpoint)],
    ['Credentials', `${way(service)}, in ${proxy.credentials_location ?? 'query'}: ${[proxy.auth_user_key, proxy.auth_app_id, proxy.auth_app_key].filter(Boolean).join(', ') || 'default names'}`],
    ['Provider of tokens', text(proxy.oidc_issuer_endpoint)],
  ];
  return (
    <Page title={<><a class="crumb" href={href(['products'])}>Products</a><span class="crumb-sep">/</span>{service.system_name || id}</>} hint={id}
      actions={about.value?.threescale_backend && <a class="button" href={href(['applications'], { service: id })}><Icon name="consumers" size={16} />Applications</a>}>
      <Card class="padded">
        <dl class="facts">{facts.filter(([, value]) => value).map(([label, value]) => <div key={label}><dt>{label}</dt><dd>{value}</dd></div>)}</dl>
      </Card>
      <Card title="Mapping rules" class="flush">
        {!(proxy.proxy_rules ?? []).length && <p class="hint padded">None: no request is taken.</p>}
        {(proxy.proxy_rules ?? []).length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Mapping rules">
            <table>
              <thead><tr><th>Method</th><th>Pattern</th><th>Metric</th><th class="num">Adds</th><th></th></tr></thead>
              <tbody>
                {proxy.proxy_rules.map((rule: Json, at: number) => (
                  <tr key={at}><td><Badge>{rule.http_method}</Badge></td><td><code>{rule.pattern}</code></td><td>{text(rule.metric_system_name)}</td><td class="num">{rule.delta ?? 1}</td><td>{rule.last && <Badge>last</Badge>}</td></tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Card>
      <Card title="Policies, in their order" class="padded">
        {!(proxy.policy_chain ?? []).length && <p class="hint">APIcast's own alone.</p>}
        <ol class="policies">
          {(proxy.policy_chain ?? []).map((policy: Json, at: number) => (
            <li key={at}>
              <strong>{bare(text(policy.name))}</strong>
              {policy.configuration && Object.keys(policy.configuration).length > 0 && <pre class="mono scroll" tabIndex={0}>{JSON.stringify(policy.configuration, null, 2)}</pre>}
            </li>
          ))}
        </ol>
      </Card>
    </Page>
  );
}

const SIZE = 50;

export function Applications() {
  const place = usePlace();
  const [service, words] = [place.query.get('service') ?? '', place.query.get('q') ?? ''];
  const page = Number(place.query.get('page') ?? 1);
  const { data, error } = useLoad(() => get('/weir/v1/threescale/applications' + query({ q: words, service, page, page_size: SIZE })), [words, service, page]);
  const choose = (next: Record<string, string>) => setQuery({ service, q: words, ...next });
  const found: Json[] = data?.applications ?? [];
  const total: number = data?.total ?? 0;
  const now = Date.now();
  return (
    <Page title="Applications" hint="Who may call: applications of the backend in this gateway, with what is used of their limits. The file of the backend or 3scale's portal is what changes them.">
      <Card class="flush">
        <div class="toolbar">
          <label class="search"><Icon name="search" size={16} /><span class="sr">Search</span><input data-search type="search" placeholder="Search  ( / )" value={words} onInput={(event) => choose({ q: event.currentTarget.value })} /></label>
          {service && <Button icon="close" tone="quiet" onClick={() => choose({ service: '' })}>Only service {service}</Button>}
        </div>
        {error && <Failure error={error} />}
        {!data && !error && <Loading />}
        {data && !found.length && <Empty icon="consumers" title={words || service ? 'No application fits' : 'No application yet'} />}
        {found.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Table">
            <table>
              <thead><tr><th>Application</th><th>Product</th><th>Plan</th><th>State</th><th class="num">Keys</th><th>Used of its limits</th></tr></thead>
              <tbody>
                {found.map((one) => (
                  <tr key={`${one.service} ${one.id}`}>
                    <td class="id">{one.id}</td>
                    <td>{about.value?.family === '3scale' ? <a href={href(['product', one.service])}>{one.service}</a> : one.service}</td>
                    <td>{one.plan.name || one.plan.id}</td>
                    <td><Badge tone={one.state === 'active' ? 'good' : 'warn'}>{one.state}</Badge></td>
                    <td class="num">{one.user_keys + one.keys}</td>
                    <td>
                      {!one.limits.length && <span class="hint">no limit</span>}
                      {one.limits.map((limit: Json) => (
                        <div key={`${limit.metric} ${limit.period}`}>
                          {limit.metric}: {count(limit.used)} of {count(limit.max)} {limit.period === 'eternity' ? 'for ever' : `a ${limit.period}`}{limit.ends && <span class="hint">, begins anew in {span(Math.max(0, (limit.ends - now) / 1000))}</span>}
                          <meter class="bar" min={0} max={limit.max || 1} value={limit.used} aria-label={`${limit.used} of ${limit.max} ${limit.metric} used`} />
                        </div>
                      ))}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        {total > SIZE && (
          <div class="toolbar">
            <span class="hint">{(page - 1) * SIZE + 1} to {Math.min(page * SIZE, total)} of {count(total)}</span>
            <Button disabled={page <= 1} onClick={() => choose({ page: String(page - 1) })}>Back</Button>
            <Button disabled={page * SIZE >= total} onClick={() => choose({ page: String(page + 1) })}>Further</Button>
          </div>
        )}
      </Card>
    </Page>
  );
}
