//! Manifests of Kubernetes, as Kong's ingress controller reads them.

use std::fs;

use crate::harness::{Gateway, Origin, RawClient, Start, weir};

fn send(gateway: &Gateway, path: &str, fields: &str) -> u16 {
    let mut client: RawClient = gateway.client();
    client.request(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n{fields}\r\n")).status
}

/// Manifests in the shape of Kong's published benchmark, and a little more.
const MANIFESTS: &str = "apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
# an Ingress for each route
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: upstream-1
  namespace: shop
  annotations: {konghq.com/strip-path: 'true', konghq.com/odd: x}
spec:
  ingressClassName: kong
  rules:
  - http:
      paths:
      - {path: /1route, pathType: ImplementationSpecific, backend: {service: {name: upstream, port: {number: 8000}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: paths, namespace: shop}
spec:
  rules:
  - host: shop.test
    http:
      paths:
      - {path: /exact, pathType: Exact, backend: {service: {name: slices, port: {name: http}}}}
      - {path: /prefix, pathType: Prefix, backend: {service: {name: slices, port: {name: http}}}}
---
apiVersion: v1
kind: Service
metadata: {name: slices, namespace: shop, annotations: {konghq.com/path: /base, konghq.com/plugins: closed}}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: slices-1, namespace: shop, labels: {kubernetes.io/service-name: slices}}
endpoints: [{addresses: [127.0.0.1]}, {addresses: [127.0.0.9], conditions: {ready: false}}]
ports: [{name: http, port: PORT}]
---
apiVersion: configuration.konghq.com/v1
kind: KongClusterPlugin
metadata: {name: keys, labels: {global: 'true'}, annotations: {kubernetes.io/ingress.class: kong}}
plugin: key-auth
config: {key_names: [apikey], hide_credentials: true}
---
apiVersion: configuration.konghq.com/v1
kind: KongPlugin
metadata: {name: closed, namespace: shop}
plugin: ip-restriction
disabled: true
config: {deny: [0.0.0.0/0]}
---
apiVersion: configuration.konghq.com/v1
kind: KongConsumer
metadata: {name: testuser1, namespace: shop}
username: testuser1
custom_id: testuser1
credentials: [test-user-key-auth-1]
---
apiVersion: v1
kind: Secret
metadata: {name: test-user-key-auth-1, namespace: shop, labels: {konghq.com/credential: key-auth}}
data: {key: dGVzdHVzZXJwYXNzd29yZDE=}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: weighted, namespace: shop}
spec:
  hostnames: [shop.test]
  rules:
  - matches: [{path: {type: PathPrefix, value: /web}, method: GET, headers: [{name: x-kind, value: a}]}]
    backendRefs: [{name: upstream, port: 8000, weight: 1}, {name: gone, port: 80, weight: 0}]
";

#[test]
fn manifests_are_served_as_they_are() {
    let origin = Origin::echo();
    let port = origin.addr().port();
    let gateway = Start::text(&MANIFESTS.replace("PORT", &port.to_string()))
        .argument("--resolve")
        .argument(&format!("shop/upstream={}", origin.node()))
        .argument("--resolve")
        .argument("gone=127.0.0.1:1")
        .start();
    let key = "apikey: testuserpassword1\r\n";
    assert_eq!(send(&gateway, "/1route/json/valid", ""), 401);
    for (path, fields, status, target) in [
        ("/1route/json/valid", "", 200, "/json/valid"),
        ("/exact", "", 200, "/base/exact"),
        ("/exact/x", "", 404, ""),
        ("/prefix", "", 200, "/base/prefix"),
        ("/prefix/x", "", 200, "/base/prefix/x"),
        ("/prefixed", "", 404, ""),
        ("/web/x", "x-kind: a\r\n", 200, "/web/x"),
        ("/web/x", "", 404, ""),
    ] {
        assert_eq!(send(&gateway, path, &format!("{key}{fields}")), status, "{path} {fields}");
        if !target.is_empty() {
            assert_eq!(origin.last().target, target, "{path}");
        }
    }
    assert_eq!(origin.last().field("Host"), Some("shop.test"), "the ingress controller keeps the Host");
    assert_eq!(origin.last().field("X-Consumer-Username"), Some("testuser1"));
}

#[test]
fn a_folder_of_manifests_is_read_and_what_is_wrong_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    for (at, document) in MANIFESTS.replace("PORT", "1").split("---\n").enumerate() {
        fs::write(folder.path().join(format!("{at:02}.yaml")), document).expect("written");
    }
    fs::write(folder.path().join("notes.txt"), "no manifest").expect("written");
    let (code, out, told) = weir(&["check", &path, "--resolve", "upstream=127.0.0.1:1"]);
    assert_eq!(code, 0, "{told}");
    assert!(out.contains("4 routes"), "{out}");
    for says in [
        "Ingress shop/upstream-1.metadata.annotations.konghq.com/odd: annotation is not supported: no effect",
        "gone.shop.svc:80 is looked up in the DNS",
    ] {
        assert!(told.contains(says), "no {says:?} in {told}");
    }
    let wrong = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a, annotations: {konghq.com/plugins: none}}\n\
        spec: {rules: [{http: {paths: [{path: a, backend: {service: {name: s, port: {number: 80}}}}]}}]}\n---\n\
        apiVersion: configuration.konghq.com/v1\nkind: KongConsumer\nmetadata: {name: c}\nusername: c\ncredentials: [no]\n---\n\
        apiVersion: x/v1\nkind: Odd\nmetadata: {name: o}\n";
    let file = folder.path().join("wrong.yml");
    fs::write(&file, wrong).expect("written");
    let (code, _, told) = weir(&["check", &file.display().to_string()]);
    assert_eq!(code, 1, "{told}");
    for says in [
        "there is no KongPlugin or KongClusterPlugin none",
        "Ingress default/a.spec.rules[0].http.paths[0].paths[0]: should start with: /",
        "KongConsumer default/c.credentials: there is no Secret of this name",
        "manifests of the kind Odd are not read",
    ] {
        assert!(told.contains(says), "no {says:?} in {told}");
    }
}
