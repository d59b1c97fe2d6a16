// Products of 3scale's family, as APIcast's configuration has them. The file or the portal is what changes them.
import { useState } from 'preact/hooks';
import { get, resourcePath, type Json, type Resource } from '../api';
import { Badge, Card, Chips, Empty, Failure, Loading, Page, useLoad } from '../controls';
import { Icon } from '../icons';
import { href } from '../router';

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
    <Page title={<><a class="crumb" href={href(['products'])}>Products</a><span class="crumb-sep">/</span>{service.system_name || id}</>} hint={id}>
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
