// An identity provider on loopback: says its port when it is ready. Arguments: the module oidc-provider, and the URIs to which
// users may be sent back.
import http from 'node:http';
import { pathToFileURL } from 'node:url';

const [module, ...places] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(module));
const server = http.createServer();
server.listen(0, '127.0.0.1', () => {
  const { port } = server.address();
  const provider = new Provider(`http://127.0.0.1:${port}`, {
    clients: [{
      client_id: 'gateway',
      client_secret: 'the secret of the gateway',
      grant_types: ['authorization_code', 'refresh_token'],
      redirect_uris: places,
      post_logout_redirect_uris: ['http://app.test/bye'],
    }],
    cookies: { keys: ['a key of the test'] },
    claims: { openid: ['sub'], email: ['email'] },
    scopes: ['openid', 'email', 'offline_access'],
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, email: `${id}@example.test` }) }),
    issueRefreshToken: () => true,
    rotateRefreshToken: true,
    pkce: { required: () => true },
    features: {
      devInteractions: { enabled: true },
      introspection: { enabled: true },
      revocation: { enabled: true },
      rpInitiatedLogout: { enabled: true },
    },
  });
  server.on('request', provider.callback());
  console.log(`ready ${port}`);
});
