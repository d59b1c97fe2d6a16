// A person at the dashboard of a real gateway, in Chromium. The first argument is the folder of node's modules; SHOTS names
// a folder for pictures of all pages.
import { createRequire } from 'node:module';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import assert from 'node:assert/strict';

const require = createRequire(join(process.argv[2], 'x.js'));
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const { ADMIN, GATEWAY, FILE_ADMIN, KONG_ADMIN, KONG_GATEWAY, TYK_ADMIN, TYK_GATEWAY, THREESCALE_ADMIN, ORIGIN, ADMIN_KEY, VIEWER_KEY, CHROMIUM, SHOTS } = process.env;
const LIMIT = 20_000;
const DOCUMENT = {
  openapi: '3.0.3', info: { title: 'Things', version: '1.2', description: 'What one pays for.' },
  components: { schemas: { Colour: { enum: ['red'] } }, parameters: { id: { name: 'id', in: 'path', required: true, schema: { type: 'integer' } } } },
  paths: {
    '/paid/{id}': {
      parameters: [{ $ref: '#/components/parameters/id' }],
      get: {
        summary: 'A thing', responses: { 200: { description: 'The thing' } },
        parameters: [{ name: 'colours', in: 'query', schema: { type: 'array', items: { $ref: '#/components/schemas/Colour' } } }],
      },
    },
  },
};

const profile = mkdtempSync(join(tmpdir(), 'weir-dashboard-'));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: CHROMIUM,
  headless: true,
  viewport: { width: 1360, height: 900 },
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const page = browser.pages()[0] ?? (await browser.newPage());
page.setDefaultTimeout(LIMIT);

// What must never happen on any page.
const faults = [];
page.on('pageerror', (error) => faults.push(`error on the page: ${error}`));
page.on('console', (message) => {
  if (message.type() === 'error' && !/status of (4\d\d|503)|ERR_CONNECTION/.test(message.text())) faults.push(`console: ${message.text()}`);
});
page.on('request', (request) => {
  const { origin, protocol } = new URL(request.url());
  if (protocol !== 'data:' && ![ADMIN, FILE_ADMIN, KONG_ADMIN, TYK_ADMIN, THREESCALE_ADMIN].includes(origin)) faults.push(`a request to another host: ${request.url()}`);
});

const api = (method, path, body, fields = {}) =>
  fetch(ADMIN + path, { method, headers: { 'X-API-KEY': ADMIN_KEY, ...fields }, body: body && JSON.stringify(body) });
const call = (path, fields = {}) => fetch(GATEWAY + path, { headers: fields }).then((answer) => answer.status);
const open = async (hash, base = ADMIN) => {
  await page.goto(`${base}/#/${hash}`);
  await page.waitForSelector('h1');
};
const heading = (text) => page.getByRole('heading', { level: 1, name: text }).waitFor();
const button = (name) => page.getByRole('button', { name, exact: true });
const dialog = () => page.locator('dialog[open]');
/** Until a change is made: its dialog closes then. */
const saved = () => dialog().waitFor({ state: 'detached' });
const logIn = async (key) => {
  await page.getByLabel('Key').fill(key);
  await button('Log in').click();
};

/** What axe finds, and what sticks out to the side. */
async function look(name) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(wide <= 0, `${name}: the page is ${wide} pixels wider than the window`);
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }));
  const told = found.violations.flatMap(({ id, nodes }) => nodes.slice(0, 3).map((node) => `${id}: ${node.html} ${node.failureSummary}`));
  assert.deepEqual(told, [], `${name}: axe`);
  if (SHOTS) {
    mkdirSync(SHOTS, { recursive: true });
    await page.screenshot({ path: join(SHOTS, `${name}.png`) });
  }
}

const flows = {
  async 'a name that the gateway does not know is told'() {
    await page.goto(`${ADMIN.replace('127.0.0.1', 'gateway.localhost')}/`);
    await page.getByText(/admin\.hosts/).waitFor();
    await look('refused');
    faults.splice(0);
  },

  async 'a wrong key opens nothing, the admin key everything'() {
    await open('');
    await look('login');
    await logIn('wrong');
    await page.getByText('the key opens nothing here').waitFor();
    await logIn(ADMIN_KEY);
    await heading('Overview');
    const cookies = await browser.cookies();
    assert.ok(cookies.every(({ httpOnly, sameSite }) => httpOnly && sameSite === 'Strict'), JSON.stringify(cookies));
    assert.equal(await page.evaluate(() => document.cookie), '', 'no script reads the session');
  },

  async 'an upstream is made with the form'() {
    await open('list/upstreams');
    await page.getByRole('link', { name: 'New upstream' }).click();
    await heading(/New upstream/);
    await page.getByLabel('id', { exact: true }).fill('backend');
    await page.getByLabel('Address of the node').fill(ORIGIN);
    await page.getByLabel('Address of the node').press('Tab');
    await look('new-upstream');
    await button('Create').click();
    await dialog().getByText('The gateway has checked the change').waitFor();
    await look('review');
    await dialog().getByRole('button', { name: 'Create' }).click();
    await heading(/backend/);
  },

  async 'a refused document says why, and a good one serves'() {
    await open('new/routes?tab=document');
    await page.getByLabel('id', { exact: true }).fill('greeting');
    const editor = page.getByLabel(/Document as JSON/);
    await editor.fill('{"uri": "/hello/*", "upstream_id": "nowhere"}');
    await button('Create').click();
    await dialog().getByRole('alert').waitFor();
    assert.match(await dialog().innerText(), /routes\/greeting\.upstream_id/);
    assert.ok(await dialog().getByRole('button', { name: 'Create' }).isDisabled());
    await dialog().getByRole('button', { name: 'Back' }).click();
    await editor.fill('{"uri": "/hello/*", "upstream_id": "backend", "plugins": {"prometheus": {}}}');
    await button('Create').click();
    await dialog().getByRole('button', { name: 'Create' }).click();
    await heading(/greeting/);
    assert.equal(await call('/hello/x'), 200);
    await page.getByRole('tab', { name: 'Form' }).click();
    await page.getByText('prometheus').first().waitFor();
    await look('route');
  },

  async 'a plugin is added from the catalogue'() {
    await open('resource/routes/greeting');
    await button('Add a plugin').click();
    await dialog().getByLabel('Search plugins').fill('limit-count');
    await look('plugin-picker');
    await dialog().getByRole('button', { name: /^limit-count/ }).click();
    await page.getByRole('button', { name: 'limit-count', expanded: false }).click();
    await page.getByLabel(/^count/).fill('3');
    await page.getByLabel(/^time window/).fill('3600');
    await look('plugin-form');
    await button('Review and save').click();
    await dialog().getByText('limit-count').first().waitFor();
    await dialog().getByRole('button', { name: 'Save' }).click();
    await saved();
    const statuses = [];
    for (let n = 0; n < 4; n++) statuses.push(await call('/hello/x'));
    assert.deepEqual(statuses, [200, 200, 200, 503]);
  },

  async 'a change by somebody else shows both versions'() {
    await open('resource/routes/greeting?tab=document');
    const editor = page.getByLabel(/Document as JSON/);
    await editor.fill('{"uri": "/hello/*", "upstream_id": "backend", "desc": "mine"}');
    const theirs = { uri: '/hello/*', upstream_id: 'backend', desc: 'theirs' };
    assert.equal((await api('PUT', '/weir/v1/resources/routes/greeting', theirs)).status, 200);
    await button('Review and save').click();
    await dialog().getByRole('heading', { name: 'Somebody else changed it meanwhile' }).waitFor();
    assert.match(await dialog().innerText(), /"theirs"[^]*"mine"/);
    await look('conflict');
    await dialog().getByRole('button', { name: 'Replace theirs by mine' }).click();
    await saved();
    const now = await (await api('GET', '/weir/v1/resources/routes/greeting')).json();
    assert.equal(now.value.desc, 'mine');
  },

  async 'lists are searched'() {
    const changes = Array.from({ length: 120 }, (_, n) => ({ key: `services/shop-${n}`, value: { name: `Shop ${n}`, upstream_id: 'backend' } }));
    assert.equal((await api('POST', '/weir/v1/transactions', { changes })).status, 200);
    await open('list/services');
    await page.getByText('120 services').waitFor();
    await page.getByRole('button', { name: 'Next page' }).click();
    await page.getByText('51–100 of 120').waitFor();
    await look('list');
    await page.keyboard.press('/');
    await page.keyboard.type('shop-77');
    await page.getByText('1 service', { exact: true }).waitFor();
    await page.getByRole('link', { name: 'shop-77' }).click();
    await heading(/shop-77/);
    await open('resource/upstreams/backend?tab=used');
    await page.getByRole('link', { name: 'routes/greeting' }).waitFor();
  },

  async 'figures and requests come live'() {
    await open('');
    const traffic = setInterval(() => { void call('/hello/x').catch(() => undefined); void call('/missing').catch(() => undefined); }, 40);
    try {
      await page.waitForFunction(() => [...document.querySelectorAll('.tile')].some((tile) => /Latency p50/.test(tile.textContent) && /\d (µs|ms)/.test(tile.querySelector('.tile-value').textContent)));
      await page.getByRole('link', { name: 'greeting', exact: true }).waitFor();
      await page.waitForFunction(() => document.querySelectorAll('.uplot canvas').length >= 4);
      if (SHOTS) await page.waitForTimeout(8000);
      await look('overview');
      await open('tail?status=404');
      await page.getByRole('cell', { name: /\/missing/ }).first().waitFor();
      assert.equal(await page.getByRole('cell', { name: /\/hello/ }).count(), 0, 'the filter holds');
      await page.getByRole('cell', { name: /\/missing/ }).first().click();
      await look('tail');
    } finally {
      clearInterval(traffic);
    }
  },

  async 'a request is explained'() {
    await open('explain');
    await page.getByLabel('URL or path').fill('http://a.test/hello/world');
    await button('Explain').click();
    await page.getByRole('link', { name: 'greeting' }).waitFor();
    await page.getByText('Retries').waitFor();
    await look('explain');
    await button('Send for real').click();
    await page.getByRole('cell', { name: 'wait for the node' }).waitFor();
    await page.getByText(/by route/).waitFor();
    await look('sent');
    await page.getByLabel('URL or path').fill('/elsewhere');
    await button('Explain').click();
    await page.getByText('None: answered 404.').waitFor();
  },

  async 'a key is given out, and a limit moved'() {
    for (const [path, value] of [
      ['plans/gold', { limits: [{ count: 1, per: 'year' }] }],
      ['consumers/jack', {}],
      ['routes/paid', { uri: '/paid', upstream_id: 'backend', plugins: { 'key-auth': {} } }],
    ]) assert.equal((await api('PUT', `/weir/v1/resources/${path}`, value)).status, 201, path);
    await open('keys');
    await button('Give out a key').click();
    await dialog().getByLabel('Consumer').fill('jack');
    await dialog().getByLabel('Id of the key').fill('phone');
    await dialog().getByText('gold', { exact: true }).click();
    await dialog().getByRole('button', { name: 'Give out' }).first().click();
    const key = await dialog().locator('code.secret').innerText();
    assert.match(key, /^[0-9a-f]{64}$/);
    await button('I have it').click();
    const paid = () => call('/paid', { apikey: key });
    assert.deepEqual([await paid(), await paid()], [200, 429]);
    await page.getByLabel('Requests a year').fill('5');
    await page.getByRole('button', { name: 'Save 5' }).click();
    await page.getByText('The plan gold holds with the next request').first().waitFor();
    assert.equal(await paid(), 200);
    await look('keys');
    await button('Suspend').click();
    await page.getByText('suspended', { exact: true }).waitFor();
    assert.equal(await paid(), 403);
    await open('usage?from=-1h');
    await page.getByRole('cell', { name: 'jack' }).waitFor();
    await look('usage');
  },

  async 'the history leads back'() {
    const before = await (await api('GET', '/weir/v1/about')).json();
    assert.equal((await api('DELETE', '/weir/v1/resources/routes/paid')).status, 200);
    await open('history');
    await page.getByText('deleted').first().waitFor();
    await look('history');
    await page.locator('.commit', { has: page.getByText(String(before.revision), { exact: true }) }).getByRole('button', { name: 'Back to here' }).click();
    await dialog().getByText('routes/paid').waitFor();
    await look('rollback');
    await dialog().getByRole('button', { name: 'Make it so' }).click();
    await page.getByText(/Everything is as it was at revision/).first().waitFor();
    assert.equal(await call('/paid'), 401);
  },

  async 'a resource is deleted, but not while it is used'() {
    await open('resource/upstreams/backend');
    await button('Delete').click();
    await dialog().getByText(/refer to it/).waitFor();
    await dialog().getByRole('button', { name: 'Delete' }).click();
    await dialog().getByRole('alert').waitFor();
    await dialog().getByRole('button', { name: 'Keep it' }).click();
    await open('resource/services/shop-1');
    await button('Delete').click();
    await dialog().getByRole('button', { name: 'Delete' }).click();
    await page.getByText(/Deleted with revision/).first().waitFor();
    assert.equal((await api('GET', '/weir/v1/resources/services/shop-1')).status, 404);
  },

  async 'all pages are fine in the dark and on a telephone'() {
    await page.setViewportSize({ width: 400, height: 800 });
    await page.emulateMedia({ colorScheme: 'dark' });
    for (const [name, hash] of [
      ['overview', ''], ['routes', 'list/routes'], ['route', 'resource/routes/paid'], ['document', 'resource/routes/paid?tab=document'], ['keys', 'keys'],
      ['history', 'history'], ['problems', 'problems'], ['explain', 'explain'], ['tail', 'tail'], ['usage', 'usage'], ['plugins', 'plugins'], ['plugin', 'plugins/cors'],
    ]) {
      await open(hash);
      await page.waitForFunction(() => !document.querySelector('.loading'));
      await look(`narrow-dark-${name}`);
    }
    await button('Open the navigation').click();
    await page.getByRole('link', { name: /^Routes( \d+)?$/ }).click();
    await heading('Routes');
    await page.setViewportSize({ width: 1360, height: 900 });
    await open('resource/routes/paid');
    await look('dark-route');
    await page.emulateMedia({ colorScheme: 'light' });
  },

  async 'a session that ends asks again and loses nothing'() {
    await open('resource/routes/paid?tab=document');
    const editor = page.getByLabel(/Document as JSON/);
    await browser.clearCookies();
    // What is typed is checked by the gateway, which does not know the session any more.
    await editor.fill('{"uri": "/paid", "upstream_id": "backend", "desc": "kept"}');
    await page.getByRole('heading', { name: 'The session has ended' }).waitFor();
    await look('session-ended');
    await page.locator('.login-again').getByLabel('Key').fill(ADMIN_KEY);
    await button('Log in').click();
    await page.getByText('Welcome back').first().waitFor();
    assert.match(await editor.inputValue(), /kept/);
    await button('Review and save').click();
    await dialog().getByRole('button', { name: 'Save' }).click();
    await saved();
  },

  async 'a viewer sees everything and no button that would be refused'() {
    await button('Log out').click();
    await heading('The session has ended');
    await page.reload();
    await logIn(VIEWER_KEY);
    await open('list/routes');
    await page.getByRole('link', { name: 'greeting', exact: true }).waitFor();
    assert.equal(await page.getByRole('link', { name: /^New/ }).count(), 0);
    await open('resource/routes/greeting');
    await page.getByText('The role viewer changes nothing.').waitFor();
    for (const name of ['Delete', 'Review and save', 'Add a plugin', 'Add a field']) assert.equal(await button(name).count(), 0, name);
    await open('keys');
    await page.getByRole('cell', { name: 'jack' }).first().waitFor();
    assert.equal(await button('Give out a key').count(), 0);
    await look('viewer');
  },

  async 'a developer has a page with applications, keys, usage and APIs'() {
    const documented = { 'key-auth': {}, 'oas-validator': { spec: JSON.stringify(DOCUMENT), _meta: { disable: true } } };
    assert.equal((await api('PUT', '/weir/v1/resources/routes/paid', { uri: '/paid', upstream_id: 'backend', plugins: documented })).status, 200);
    const made = await (await api('POST', '/weir/v1/developers', { id: 'dora', name: 'Dora', plans: ['gold'] })).json();
    await button('Log out').click();
    await heading('The session has ended');
    await page.goto(`${ADMIN}/`);
    await page.reload();
    await button('I am a developer').click();
    await page.getByLabel('Token').fill(made.token);
    await button('Log in').click();
    await heading('Dora');
    await button('New application').click();
    await dialog().getByLabel('Description').fill('A phone');
    await dialog().getByRole('button', { name: 'Make it' }).first().click();
    await page.getByRole('heading', { name: /A phone/ }).waitFor();
    await button('New key').click();
    const key = await dialog().locator('code.secret').innerText();
    await button('I have it').click();
    assert.equal(await call('/paid', { apikey: key }), 200);
    await page.reload();
    await page.getByRole('cell', { name: 'paid' }).first().waitFor();
    await page.getByText(/of 5 a year/).waitFor();
    await look('developer');
    await button('Documentation').click();
    await dialog().getByText('GET /paid/{id}').click();
    await dialog().getByRole('cell', { name: 'list of Colour' }).waitFor();
    await dialog().getByRole('cell', { name: 'The thing' }).waitFor();
    await look('documentation');
    await dialog().getByRole('button', { name: 'Close', exact: true }).last().click();
    await page.setViewportSize({ width: 400, height: 800 });
    await look('narrow-developer');
    await page.setViewportSize({ width: 1360, height: 900 });
    await button('Log out').click();
    await page.reload();
    await logIn(VIEWER_KEY);
    await heading('Overview');
  },

  async 'a gateway run from a file says why it cannot be edited'() {
    await open('', FILE_ADMIN);
    await logIn(ADMIN_KEY);
    await page.getByText(/resources come from the file/).first().waitFor();
    await open('list/routes', FILE_ADMIN);
    await page.getByRole('link', { name: 'from-a-file' }).click();
    await heading(/from-a-file/);
    assert.equal(await button('Review and save').count(), 0);
    await look('file');
  },

  async 'the words are those of Kong where its family runs'() {
    await open('', KONG_ADMIN);
    await logIn(ADMIN_KEY);
    await heading('Overview');
    await page.getByText('for Kong').waitFor();
    await open('new/services', KONG_ADMIN);
    await page.getByRole('tab', { name: 'Document' }).click();
    const editor = page.getByLabel(/Document as JSON/);
    const [host, port] = ORIGIN.split(':');
    await editor.fill(JSON.stringify({ name: 'shop', host, port: Number(port), protocol: 'http' }));
    await button('Create').click();
    await dialog().getByRole('button', { name: 'Create' }).click();
    await heading(/shop/);
    await open('new/routes', KONG_ADMIN);
    await page.getByRole('tab', { name: 'Document' }).click();
    await editor.fill(JSON.stringify({ name: 'orders', paths: ['/orders'], service: { name: 'shop' } }));
    await button('Create').click();
    await dialog().getByRole('button', { name: 'Create' }).click();
    await heading(/orders/);
    let status = 0;
    for (let n = 0; n < 100 && status !== 200; n++) status = (await fetch(`${KONG_GATEWAY}/orders/1`)).status;
    assert.equal(status, 200);
    await page.getByLabel(/^name/).fill('renamed');
    await look('kong-route');
    await button('Review and save').click();
    await dialog().getByText('renamed').first().waitFor();
    await dialog().getByRole('button', { name: 'Save' }).click();
    await saved();
    await open('list/routes', KONG_ADMIN);
    await page.getByRole('link', { name: 'renamed' }).waitFor();
    await page.getByPlaceholder(/Search/).fill('/ord');
    await page.getByRole('link', { name: 'renamed' }).waitFor();
    await look('kong-list');
    await page.getByPlaceholder(/Search/).fill('nowhere');
    await page.getByText('Nothing has “nowhere” in it').waitFor();
  },

  async 'targets and credentials of Kong belong to their entities'() {
    const post = async (path, body) => {
      const answer = await fetch(`${KONG_ADMIN}${path}`, { method: 'POST', headers: { 'Content-Type': 'application/json', 'Kong-Admin-Token': ADMIN_KEY }, body: JSON.stringify(body) });
      assert.equal(answer.status, 201);
      return (await answer.json()).id;
    };
    const upstream = await post('/upstreams', { name: 'orders.test' });
    const consumer = await post('/consumers', { username: 'ann' });
    await post('/consumers/ann/plugins', { name: 'rate-limiting', config: { minute: 60 } });
    await open(`entity/upstreams/${upstream}`, KONG_ADMIN);
    await page.getByText('No target yet.').waitFor();
    await button('Add').click();
    await dialog().getByLabel('target').fill(ORIGIN);
    await dialog().getByLabel('weight').fill('10');
    await dialog().getByRole('button', { name: 'Add' }).click();
    await page.getByRole('cell', { name: 'weight 10' }).waitFor();
    await page.getByText(/healthchecks off|healthy/i).first().waitFor();
    await look('kong-targets');
    page.once('dialog', (asked) => asked.accept());
    await button(`Delete the target ${ORIGIN}`).click();
    await page.getByText('No target yet.').waitFor();
    await open(`entity/consumers/${consumer}`, KONG_ADMIN);
    await page.getByRole('link', { name: 'rate-limiting' }).waitFor();
    await page.locator('section', { hasText: 'Keys (key-auth)' }).getByRole('button', { name: 'Add' }).click();
    await dialog().getByLabel('key').fill('a-key-of-ann');
    await dialog().getByRole('button', { name: 'Add' }).click();
    await button('Show the key').click();
    await page.getByText('a-key-of-ann').waitFor();
    await page.locator('section', { hasText: 'Passwords (basic-auth)' }).getByRole('button', { name: 'Add' }).click();
    await dialog().getByLabel('username').fill('ann');
    await dialog().getByLabel('password').fill('her-password');
    await dialog().getByRole('button', { name: 'Add' }).click();
    await page.getByRole('cell', { name: 'ann', exact: true }).waitFor();
    await look('kong-credentials');
  },

  async 'products are shown where 3scale runs'() {
    await page.goto(`${THREESCALE_ADMIN}/`);
    await logIn(VIEWER_KEY);
    await page.getByText('for 3scale').waitFor();
    await page.getByRole('link', { name: 'Products' }).click();
    await heading('Products');
    await look('threescale-products');
    await page.getByRole('link', { name: 'words' }).click();
    await heading(/words/);
    await page.getByText('/words/{word}.json').waitFor();
    await page.getByText('3scale_batcher').waitFor();
    await look('threescale-product');
    await page.getByRole('link', { name: 'Applications' }).last().click();
    await heading('Applications');
    await page.getByText('Only service 16').waitFor();
    await page.getByRole('cell', { name: 'anna' }).waitFor();
    assert.equal(await page.getByRole('cell', { name: 'carl' }).count(), 0);
    await button('Only service 16').click();
    await page.getByRole('cell', { name: 'carl' }).waitFor();
    await page.getByText('hits: 0 of 5 a minute').first().waitFor();
    await look('threescale-applications');
    await page.getByPlaceholder(/Search/).fill('suspended');
    await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 1);
    await page.getByRole('cell', { name: 'bert' }).waitFor();
    const shown = await page.content();
    assert.ok(!shown.includes('bert-key') && !shown.includes('a-service-token') && !shown.includes('a-secret-of-both-sides'));
  },

  async 'the words are those of Tyk where its family runs'() {
    await page.goto(`${TYK_ADMIN}/`);
    await logIn(ADMIN_KEY);
    await heading('Overview');
    await page.getByText('for Tyk').waitFor();
    await open('list/apis', TYK_ADMIN);
    await page.getByRole('link', { name: 'orders' }).waitFor();
    await page.getByText('/orders/', { exact: true }).waitFor();
    await look('tyk-apis');
    await open('new/apis?tab=document', TYK_ADMIN);
    const editor = page.getByLabel(/Document as JSON/);
    const definition = JSON.parse(await editor.inputValue());
    await editor.fill(JSON.stringify({ ...definition, name: 'shop', api_id: 'shop', org_id: 'o1', use_keyless: false, auth: { auth_header_name: 'Authorization' }, proxy: { ...definition.proxy, listen_path: '/shop/', target_url: `http://${ORIGIN}/` } }));
    await button('Create').click();
    await dialog().getByRole('button', { name: 'Create' }).click();
    await heading(/shop/);
    assert.equal((await fetch(`${TYK_GATEWAY}/shop/1`)).status, 401);
    // The form of an API: a limit of all callers, which the document has then.
    await open('entity/apis/orders', TYK_ADMIN);
    await page.getByLabel(/^listen path/).waitFor();
    assert.equal(await page.getByLabel(/^listen path/).inputValue(), '/orders/');
    await button('Add a field').last().click();
    await dialog().getByLabel('Search fields').fill('global rate');
    await dialog().getByRole('button', { name: /global rate limit/ }).click();
    const limit = page.locator('fieldset', { hasText: 'global rate limit' }).last();
    await limit.getByRole('button', { name: 'Add a field' }).click();
    await dialog().getByRole('button', { name: /^rate/ }).click();
    await limit.getByLabel(/^rate/).fill('50');
    await look('tyk-form');
    await page.getByRole('tab', { name: 'Document' }).click();
    assert.deepEqual(JSON.parse(await editor.inputValue()).global_rate_limit, { rate: 50 });
    await open('new/policies', TYK_ADMIN);
    await page.getByLabel(/^id/).fill('gold');
    await page.getByLabel(/^rate/).fill('20');
    await button('Create').click();
    await dialog().getByRole('button', { name: 'Create' }).click();
    await heading(/gold/);
    await open('new/keys?tab=document', TYK_ADMIN);
    await editor.fill(JSON.stringify({ org_id: 'o1', rate: 100, per: 1, quota_max: -1, access_rights: { shop: { api_id: 'shop', api_name: 'shop', versions: ['Default'] } } }));
    await button('Create').click();
    await dialog().getByRole('button', { name: 'Create' }).click();
    const key = await page.locator('code.secret').innerText();
    await button('I have it').click();
    await heading('Keys');
    assert.equal((await fetch(`${TYK_GATEWAY}/shop/1`, { headers: { Authorization: key } })).status, 200);
    await look('tyk-keys');
    // Somebody else changes the key while it is being edited here: both changes are shown, and neither is lost unseen.
    await page.locator('td.id a').first().click();
    await page.waitForURL(/entity\/keys/);
    await page.getByRole('tab', { name: 'Document' }).click();
    const session = JSON.parse(await editor.inputValue());
    const csrf = await page.evaluate(async () => (await (await fetch('/weir/v1/session')).json()).csrf);
    const other = await page.evaluate(async ([session, csrf]) => (await fetch(`/weir/v1/tyk/keys/${location.hash.split('?')[0].split('/').pop()}?hashed=true`, { method: 'PUT', headers: { 'Content-Type': 'application/json', 'X-CSRF-Token': csrf }, body: JSON.stringify({ ...session, rate: 7 }) })).status, [session, csrf]);
    assert.equal(other, 200);
    await editor.fill(JSON.stringify({ ...session, rate: 9 }));
    await button('Review and save').click();
    await dialog().getByRole('button', { name: 'Save' }).click();
    await dialog().getByText('Somebody else changed it meanwhile').waitFor();
    await look('tyk-conflict');
    await dialog().getByRole('button', { name: 'Replace theirs by mine' }).click();
    await saved();
    await page.waitForFunction(() => document.querySelector('textarea.editor')?.value.includes('"rate": 9'));
  },
};

let failed = false;
for (const [name, flow] of Object.entries(flows)) {
  const began = Date.now();
  try {
    await flow();
    assert.deepEqual(faults.splice(0), [], 'faults');
    console.log(`ok ${name} (${Date.now() - began} ms)`);
  } catch (error) {
    failed = true;
    console.log(`FAILED ${name}: ${error.stack}\n${faults.splice(0).join('\n')}\nat ${page.url()}\n${(await page.locator('body').innerText().catch(() => '')).slice(0, 2000)}`);
    if (SHOTS) await page.screenshot({ path: join(SHOTS, 'failed.png') }).catch(() => undefined);
    break;
  }
}
await browser.close();
rmSync(profile, { recursive: true, force: true });
if (failed) process.exit(1);
console.log('all flows passed');
