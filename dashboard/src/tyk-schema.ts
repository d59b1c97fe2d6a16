// Fields of Tyk's documents that forms have, as Tyk's documentation tells them. All others are in the document.
import type { Schema } from './schema';

const text = (description: string, more: Schema = {}): Schema => ({ type: 'string', description, ...more });
const flag = (description: string): Schema => ({ type: 'boolean', default: false, description });
const number = (description: string, more: Schema = {}): Schema => ({ type: 'number', description, ...more });
const texts = (description: string): Schema => ({ type: 'array', items: { type: 'string' }, description });
const json = (description: string): Schema => ({ type: 'object', description });
const object = (description: string, properties: Record<string, Schema>, required: string[] = []): Schema => ({ type: 'object', description, properties, required });

const LIMITS: Record<string, Schema> = {
  rate: number('Requests in `per` seconds; 0 or less: any number.'),
  per: number('Seconds.'),
  quota_max: number('Requests of a quota; -1: any number.', { type: 'integer' }),
  quota_renewal_rate: number('Seconds after which the quota begins anew; 0: never.', { type: 'integer', minimum: 0 }),
  throttle_interval: number('Seconds for which a request beyond the rate waits; -1: it is refused.'),
  throttle_retry_limit: number('Number of such waits; -1: none.', { type: 'integer' }),
  max_query_depth: number('Levels of GraphQL operations; -1: any number.', { type: 'integer' }),
};

const RIGHTS = json('APIs by their ids: `{"ID": {"api_id": "ID", "api_name": "NAME", "versions": ["Default"]}}`, with `limit` and `allowed_urls` where they differ.');

const SESSION: Record<string, Schema> = {
  ...LIMITS,
  access_rights: RIGHTS,
  tags: texts('Tags of records.'),
  meta_data: json('Values for `$tyk_meta` and for middleware.'),
  is_inactive: flag('Refuses the requests.'),
  hmac_enabled: flag('Requests are signed.'),
};

const SCHEMAS: Record<string, Schema> = {
  apis: object('', {
    name: text('Name for people.', { minLength: 1 }),
    api_id: text('Id, which rights name.'),
    org_id: text('Organisation.'),
    active: flag('Serves requests.'),
    internal: flag('For loops and as a version of other APIs alone.'),
    proxy: object('', {
      listen_path: text('Beginning of the paths of requests.', { minLength: 1 }),
      target_url: text('URL of the upstream, or of another API: `tyk://NAME`.', { minLength: 1 }),
      strip_listen_path: flag('Takes the listen path off.'),
      preserve_host_header: flag('Sends the Host of the request.'),
      enable_load_balancing: flag('Spreads requests over `target_list`.'),
      target_list: texts('URLs of targets.'),
      check_host_against_uptime_tests: flag('Passes over targets that fail their tests.'),
      service_discovery: json('A service that tells the targets.'),
    }, ['listen_path', 'target_url']),
    use_keyless: flag('Everybody may call.'),
    use_standard_auth: flag('Callers have keys.'),
    use_basic_auth: flag('Callers have users and passwords.'),
    enable_jwt: flag('Callers have tokens of JWT.'),
    use_oauth2: flag('Callers have tokens of the OAuth server here.'),
    use_openid: flag('Callers have tokens of an OpenID provider.'),
    enable_signature_checking: flag('Callers sign their requests.'),
    use_mutual_tls_auth: flag('Callers show a certificate.'),
    client_certificates: texts('Certificates that callers may show: paths, or ids.'),
    auth: object('Place of the key.', {
      auth_header_name: text('Header.', { default: 'Authorization' }),
      use_param: flag('It may be in the query.'),
      param_name: text('Name of the argument.'),
      use_cookie: flag('It may be in a cookie.'),
      cookie_name: text('Name of the cookie.'),
    }),
    strip_auth_data: flag('Takes the key out of requests.'),
    jwt_signing_method: { enum: ['hmac', 'rsa', 'ecdsa'], description: 'Kind of signatures.' },
    jwt_source: text('Key in base64, or the URL of a set of keys.'),
    jwt_identity_base_field: text('Claim with the caller.', { default: 'sub' }),
    jwt_policy_field_name: text('Claim with the policy.'),
    jwt_default_policies: texts('Policies of tokens that name none.'),
    domain: text('Host of requests.'),
    global_rate_limit: object('Limit of all callers together.', { rate: number('Requests.'), per: number('Seconds.'), disabled: flag('Is off.') }),
    disable_rate_limit: flag('Rates of keys do not hold.'),
    disable_quota: flag('Quotas of keys do not hold.'),
    enable_ip_whitelisting: flag('Lets `allowed_ips` alone call.'),
    allowed_ips: texts('Addresses and ranges.'),
    enable_ip_blacklisting: flag('Refuses `blacklisted_ips`.'),
    blacklisted_ips: texts('Addresses and ranges.'),
    CORS: object('Pages of other origins.', {
      enable: flag('Answers browsers.'),
      allowed_origins: texts('Origins, `*` for all.'),
      allowed_methods: texts('Methods.'),
      allowed_headers: texts('Headers of requests.'),
      exposed_headers: texts('Headers of answers.'),
      allow_credentials: flag('With cookies.'),
      max_age: number('Seconds for which a browser remembers the answer.', { type: 'integer', minimum: 0 }),
      options_passthrough: flag('Lets the upstream answer OPTIONS.'),
    }),
    cache_options: object('Answers that are kept.', {
      enable_cache: flag('Keeps answers.'),
      cache_timeout: number('Seconds.', { type: 'integer', minimum: 0 }),
      cache_all_safe_requests: flag('All answers to GET, HEAD and OPTIONS.'),
      cache_by_headers: texts('Headers that tell requests apart.'),
      enable_upstream_cache_control: flag('The upstream says how long.'),
    }),
    upstream_certificates: { type: 'object', additionalProperties: { type: 'string' }, description: 'Certificates that upstreams are shown, by their hosts: paths of files in PEM.' },
    session_lifetime: number('Seconds for which keys stay in Redis; 0: until they are taken out.', { minimum: 0 }),
    enable_context_vars: flag('`$tyk_context` has values.'),
    enable_batch_request_support: flag('Takes batches of requests.'),
    enable_detailed_recording: flag('Records requests and answers whole.'),
    do_not_track: flag('Records nothing.'),
    tag_headers: texts('Headers that become tags of records.'),
    version_data: json('Versions with their lists of paths.'),
    version_definition: json('Versions that are APIs of their own.'),
    custom_middleware: json('Middleware in JavaScript or over gRPC.'),
    event_handlers: json('Web hooks and scripts that are told of events.'),
    uptime_tests: json('Tests of targets.'),
    graphql: json('The GraphQL schema.'),
  }, ['name', 'proxy']),
  policies: object('', {
    id: text('Id.', { minLength: 1 }),
    name: text('Name for people.'),
    org_id: text('Organisation.'),
    ...SESSION,
    partitions: object('Parts that keys take over; none: all.', { quota: flag('Quotas.'), rate_limit: flag('Rates.'), acl: flag('Rights.'), per_api: flag('Limits of each API apart.') }),
    key_expires_in: number('Seconds after which new keys expire; 0: never.', { type: 'integer', minimum: 0 }),
  }, ['id', 'access_rights']),
  keys: object('', {
    alias: text('Name for people.'),
    org_id: text('Organisation.'),
    apply_policies: texts('Ids of policies.'),
    ...SESSION,
    expires: number('Second since 1970 from which on the key is refused; 0 or -1: never.', { type: 'integer' }),
    session_lifetime: number('Seconds for which the key stays in Redis.', { type: 'integer', minimum: 0 }),
    enable_detailed_recording: flag('Records requests and answers whole.'),
    basic_auth_data: object('User of basic authentication.', { password: text('Password.') }),
    quota_remaining: number('Requests that are left of the quota.', { type: 'integer' }),
    quota_renews: number('Second since 1970 at which the quota begins anew.', { type: 'integer' }),
    date_created: text('Time at which the key was made.'),
    last_updated: text('Second since 1970 of the last change.'),
  }),
};

/** The schema of the documents of a kind: `apis`, `policies` or `keys`. */
export const tykSchema = (kind: string): Schema => SCHEMAS[kind] ?? { type: 'object' };
