// Kinds of resources, in the order in which people look for them.
import type { Json } from './api';

export interface KindInfo {
  kind: string;
  /** Name of one, as in names of schemas. */
  name: string;
  label: string;
  one: string;
  group: 'Traffic' | 'Callers' | 'Security' | 'Shared';
  hint: string;
  /** A new one to begin with. */
  blank: Json;
  columns: { label: string; of: (value: Json) => string | string[] }[];
  /** The field with the id; a field that the path has. */
  idField: string;
}

const text = (value: Json) => (value === undefined || value === null ? '' : String(value));
const list = (one: Json, several: Json): string[] => [...(one ? [text(one)] : []), ...(Array.isArray(several) ? several.map(text) : [])];
const plugins = { label: 'Plugins', of: (v: Json) => Object.keys(v.plugins ?? {}) };
const nodesOf = (u: Json): string[] => {
  const nodes = u?.nodes;
  if (Array.isArray(nodes)) return nodes.map((n) => `${n.host}${n.port ? ':' + n.port : ''}`);
  return Object.keys(nodes ?? {});
};
const target = (v: Json) =>
  v.service_id ? `service ${v.service_id}` : v.upstream_id ? `upstream ${v.upstream_id}` : v.upstream ? nodesOf(v.upstream).join(', ') : '';

export const KINDS: KindInfo[] = [
  {
    kind: 'routes', name: 'route', label: 'Routes', one: 'route', group: 'Traffic', idField: 'id',
    hint: 'Rules that say which requests go where, and through which plugins.',
    blank: { uri: '/', upstream: { nodes: { '127.0.0.1:8080': 1 } } },
    columns: [
      { label: 'Matches', of: (v) => [...(v.methods ?? []), ...list(v.uri, v.uris)] },
      { label: 'Hosts', of: (v) => list(v.host, v.hosts) },
      { label: 'Goes to', of: target },
      plugins,
    ],
  },
  {
    kind: 'services', name: 'service', label: 'Services', one: 'service', group: 'Traffic', idField: 'id',
    hint: 'What several routes have in common: an upstream and plugins.',
    blank: { upstream: { nodes: { '127.0.0.1:8080': 1 } } },
    columns: [{ label: 'Hosts', of: (v) => v.hosts ?? [] }, { label: 'Goes to', of: target }, plugins],
  },
  {
    kind: 'upstreams', name: 'upstream', label: 'Upstreams', one: 'upstream', group: 'Traffic', idField: 'id',
    hint: 'The servers behind the gateway, and how requests are spread over them.',
    blank: { type: 'roundrobin', nodes: { '127.0.0.1:8080': 1 } },
    columns: [
      { label: 'Nodes', of: nodesOf },
      { label: 'Balancer', of: (v) => text(v.type ?? 'roundrobin') },
      { label: 'Checks', of: (v) => (v.checks ? Object.keys(v.checks) : 'none') },
    ],
  },
  {
    kind: 'stream_routes', name: 'stream_route', label: 'Stream routes', one: 'stream route', group: 'Traffic', idField: 'id',
    hint: 'Connections over TCP and UDP.',
    blank: { server_port: 9100, upstream: { nodes: { '127.0.0.1:5432': 1 } } },
    columns: [
      { label: 'Matches', of: (v) => list(v.server_addr, []).concat(v.server_port ? [`port ${v.server_port}`] : [], v.sni ? [v.sni] : []) },
      { label: 'Goes to', of: target },
      plugins,
    ],
  },
  {
    kind: 'consumers', name: 'consumer', label: 'Consumers', one: 'consumer', group: 'Callers', idField: 'username',
    hint: 'Who calls, and the plugins that hold for their requests.',
    blank: { username: '', plugins: {} },
    columns: [{ label: 'Group', of: (v) => text(v.group_id) }, plugins],
  },
  {
    kind: 'credentials', name: 'credential', label: 'Credentials', one: 'credential', group: 'Callers', idField: 'id',
    hint: 'Keys and other secrets by which consumers are known.',
    blank: { plugins: { 'key-auth': { key: '' } } },
    columns: [{ label: 'Plan', of: (v) => v.plan?.plans ?? [] }, plugins],
  },
  {
    kind: 'consumer_groups', name: 'consumer_group', label: 'Consumer groups', one: 'consumer group', group: 'Callers', idField: 'id',
    hint: 'Plugins that several consumers have in common.',
    blank: { plugins: {} }, columns: [plugins],
  },
  {
    kind: 'plans', name: 'plan', label: 'Plans', one: 'plan', group: 'Callers', idField: 'id',
    hint: 'What callers may call, and how much.',
    blank: { limits: [{ count: 1000, per: 'hour' }] },
    columns: [
      { label: 'Limits', of: (v) => (v.limits ?? []).map((l: Json) => `${l.count} a ${l.per}`) },
      { label: 'Includes', of: (v) => (v.access ? v.access.flatMap((a: Json) => [...(a.services ?? []), ...(a.routes ?? [])]) : 'everything') },
    ],
  },
  {
    kind: 'ssls', name: 'ssl', label: 'Certificates', one: 'certificate', group: 'Security', idField: 'id',
    hint: 'Certificates for names that clients ask for by TLS.',
    blank: { snis: ['example.com'], cert: '', key: '' },
    columns: [{ label: 'Names', of: (v) => list(v.sni, v.snis) }, { label: 'Type', of: (v) => text(v.type ?? 'server') }],
  },
  {
    kind: 'secrets', name: 'secret', label: 'Secret managers', one: 'secret manager', group: 'Security', idField: 'id',
    hint: 'Places that values of references such as $secret:// come from.',
    blank: { uri: 'http://127.0.0.1:8200', prefix: 'kv/weir', token: '' },
    columns: [{ label: 'Address', of: (v) => text(v.uri ?? v.region ?? '') }],
  },
  {
    kind: 'global_rules', name: 'global_rule', label: 'Global rules', one: 'global rule', group: 'Shared', idField: 'id',
    hint: 'Plugins for every request.', blank: { plugins: {} }, columns: [plugins],
  },
  {
    kind: 'plugin_configs', name: 'plugin_config', label: 'Plugin configs', one: 'plugin config', group: 'Shared', idField: 'id',
    hint: 'Sets of plugins that routes refer to.', blank: { plugins: {} }, columns: [plugins],
  },
  {
    kind: 'plugin_metadata', name: 'plugin_metadata', label: 'Plugin metadata', one: 'plugin metadata', group: 'Shared', idField: 'id',
    hint: 'Settings of a plugin that hold wherever it is used.', blank: {},
    columns: [{ label: 'Fields', of: (v) => Object.keys(v).filter((name) => name !== 'id') }],
  },
  {
    kind: 'protos', name: 'proto', label: 'Protos', one: 'proto', group: 'Shared', idField: 'id',
    hint: 'Descriptions of gRPC services.', blank: { content: 'syntax = "proto3";\n' },
    columns: [{ label: 'Size', of: (v) => `${text(v.content).length} characters` }],
  },
];

export const kindInfo = (kind: string) => KINDS.find((info) => info.kind === kind);
/** The kind of a key: credentials have a longer one. */
export const kindOf = (key: string) => (key.includes('/credentials/') ? 'credentials' : key.split('/')[0]!);
export const idOf = (key: string) => key.slice(key.indexOf('/') + 1);
