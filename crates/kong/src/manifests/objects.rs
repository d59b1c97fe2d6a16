//! The objects of manifests, by kind, namespace and name.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_config::{Diagnostic, Kind, Node};

use super::entities::{Made, plugin};
use super::{doubt, fault};
use crate::lower::{list, map, text};

/// An object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object<'n> {
    pub(super) kind: &'n str,
    pub(super) namespace: &'n str,
    pub(super) name: &'n str,
    pub(super) node: &'n Node,
}

/// The objects of all documents.
#[derive(Debug)]
pub(super) struct Objects<'n>(pub(super) Vec<Object<'n>>);

/// Kinds that say nothing about requests here.
const OTHERS: &[&str] = &[
    "Namespace",
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "Pod",
    "Job",
    "CronJob",
    "ConfigMap",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "IngressClass",
    "GatewayClass",
    "Gateway",
    "HorizontalPodAutoscaler",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "PersistentVolume",
    "StorageClass",
    "CustomResourceDefinition",
    "IngressClassParameters",
    "TestRun",
    "ServiceMonitor",
    "PodMonitor",
];

/// Kinds that are read.
const KINDS: &[&str] =
    &["Ingress", "HTTPRoute", "Service", "EndpointSlice", "Secret", "KongPlugin", "KongClusterPlugin", "KongConsumer"];

/// Prefix of the annotations of Kong's ingress controller.
pub(super) const ANNOTATION: &str = "konghq.com/";

impl<'n> Object<'n> {
    /// Path of a field in messages: `Ingress default/a.spec`.
    pub(super) fn path(&self, field: &str) -> String {
        let dot = if field.is_empty() { "" } else { "." };
        match self.kind {
            "KongClusterPlugin" => format!("{} {}{dot}{field}", self.kind, self.name),
            _ => format!("{} {}/{}{dot}{field}", self.kind, self.namespace, self.name),
        }
    }

    /// A field by its path.
    pub(super) fn at(&self, path: &[&str]) -> Option<&'n Node> {
        path.iter().try_fold(self.node, |node, name| node.get(name)).filter(|node| !node.is_null())
    }

    /// The annotation of this name of Kong's.
    pub(super) fn annotation(&self, name: &str) -> Option<&'n Node> {
        self.at(&["metadata", "annotations"])?.get(&format!("{ANNOTATION}{name}"))
    }

    /// The elements of an annotation with commas.
    pub(super) fn listed(&self, name: &str) -> Vec<&'n str> {
        let written = self.annotation(name).and_then(Node::as_str).unwrap_or_default();
        written.split(',').map(str::trim).filter(|part| !part.is_empty()).collect()
    }

    /// Warns of annotations of Kong's that are not read.
    pub(super) fn check_annotations(&self, known: &[&str], found: &mut Vec<Diagnostic>) {
        for (key, value) in self.at(&["metadata", "annotations"]).and_then(Node::as_map).unwrap_or_default() {
            let Some(name) = key.text.strip_prefix(ANNOTATION) else { continue };
            if !known.contains(&name) && !name.starts_with("headers.") {
                let path = self.path(&format!("metadata.annotations.{}", key.text));
                found.push(doubt(value, path, "annotation is not supported: no effect"));
            }
        }
    }
}

impl<'n> Objects<'n> {
    pub(super) fn of(documents: &'n [Node], found: &mut Vec<Diagnostic>) -> Self {
        let mut objects = Vec::new();
        for node in documents {
            let at = |path: &[&str]| path.iter().try_fold(node, |node, name| node.get(name)).and_then(Node::as_str);
            let (Some(kind), Some(name)) = (at(&["kind"]), at(&["metadata", "name"])) else {
                found.push(fault(node, "manifest".to_owned(), "expected apiVersion, kind and metadata.name"));
                continue;
            };
            let namespace = at(&["metadata", "namespace"]).unwrap_or("default");
            let object = Object { kind, namespace, name, node };
            match () {
                () if KINDS.contains(&kind) => objects.push(object),
                () if OTHERS.contains(&kind) => {}
                () => found.push(doubt(node, object.path(""), format!("manifests of the kind {kind} are not read"))),
            }
        }
        Self(objects)
    }

    pub(super) fn all(&self, kind: &'static str) -> impl Iterator<Item = &Object<'n>> {
        self.0.iter().filter(move |object| object.kind == kind)
    }

    pub(super) fn find(&self, kind: &'static str, namespace: &str, name: &str) -> Option<&Object<'n>> {
        self.all(kind).find(|object| object.name == name && object.namespace == namespace)
    }

    /// The plugin that a name means in a namespace.
    fn plugin_named(&self, namespace: &str, name: &str) -> Option<&Object<'n>> {
        let of_cluster = || self.all("KongClusterPlugin").find(|object| object.name == name);
        self.find("KongPlugin", namespace, name).or_else(of_cluster)
    }

    /// Attaches the plugins that an annotation names.
    pub(super) fn attach(&self, object: &Object<'n>, to: (&str, &str), made: &mut Made, found: &mut Vec<Diagnostic>) {
        for name in object.listed("plugins") {
            let Some(known) = self.plugin_named(object.namespace, name) else {
                let path = object.path("metadata.annotations.konghq.com/plugins");
                found.push(fault(object.node, path, format!("there is no KongPlugin or KongClusterPlugin {name}")));
                continue;
            };
            let entity = plugin(known, self.config(known, found), Some(to));
            made.add("plugins", entity, known, "");
        }
    }

    /// Plugins for all requests: those of the cluster with the label `global`.
    pub(super) fn global_plugins(&self, made: &mut Made, found: &mut Vec<Diagnostic>) {
        for object in self.all("KongClusterPlugin") {
            if object.at(&["metadata", "labels", "global"]).and_then(Node::as_str) == Some("true") {
                let entity = plugin(object, self.config(object, found), None);
                made.add("plugins", entity, object, "");
            }
        }
    }

    /// The configuration of a plugin, in place or from a secret.
    fn config(&self, object: &Object<'n>, found: &mut Vec<Diagnostic>) -> Node {
        if let Some(config) = object.at(&["config"]) {
            return config.clone();
        }
        let empty = map(object.node.mark, []);
        let Some(reference) = object.at(&["configFrom", "secretKeyRef"]) else { return empty };
        let text = |field: &str| reference.get(field).and_then(Node::as_str);
        let namespace = text("namespace").unwrap_or(object.namespace);
        let secret = text("name").and_then(|name| self.find("Secret", namespace, name));
        let value = secret.zip(text("key")).and_then(|(secret, key)| secret.data(key));
        match value.map(|value| Node::parse(&value)) {
            Some(Ok(parsed)) => parsed.root,
            _ => {
                let path = object.path("configFrom.secretKeyRef");
                found.push(fault(reference, path, "there is no Secret with this key that holds YAML"));
                empty
            }
        }
    }

    /// Consumers with the credentials in their secrets.
    pub(super) fn consumers(&self, made: &mut Made, found: &mut Vec<Diagnostic>) {
        for object in self.all("KongConsumer") {
            object.check_annotations(&["plugins"], found);
            let mut consumer = map(object.node.mark, []);
            for field in ["username", "custom_id"] {
                if let Some(value) = object.at(&[field]) {
                    consumer.insert(field, value.clone());
                }
            }
            let key = ["username", "custom_id"].iter().find_map(|field| object.at(&[field])?.as_str());
            let key = key.unwrap_or_default().to_owned();
            made.add("consumers", consumer, object, "");
            for name in object.at(&["credentials"]).and_then(Node::as_seq).unwrap_or_default() {
                let secret = name.as_str().and_then(|name| self.find("Secret", object.namespace, name));
                match secret {
                    Some(secret) => secret.credential(&key, made, found),
                    None => found.push(fault(name, object.path("credentials"), "there is no Secret of this name")),
                }
            }
            self.attach(object, ("consumer", &key), made, found);
        }
    }

    /// Certificates that `tls` of an Ingress names.
    pub(super) fn certificates(&self, made: &mut Made, found: &mut Vec<Diagnostic>) {
        for object in self.all("Ingress") {
            for tls in object.at(&["spec", "tls"]).and_then(Node::as_seq).unwrap_or_default() {
                let Some(name) = tls.get("secretName").and_then(Node::as_str) else { continue };
                let hosts = tls.get("hosts").and_then(Node::as_seq).unwrap_or_default().to_vec();
                let secret = self.find("Secret", object.namespace, name);
                let pair = secret.and_then(|secret| Some((secret.data("tls.crt")?, secret.data("tls.key")?)));
                let Some((cert, key)) = pair else {
                    let text = format!("there is no Secret {name} with tls.crt and tls.key");
                    found.push(fault(tls, object.path("spec.tls"), text));
                    continue;
                };
                let entries = [("cert", text(&cert)), ("key", text(&key)), ("snis", list(tls.mark, hosts))];
                made.add("certificates", map(tls.mark, entries), object, "spec.tls");
            }
        }
    }
}

impl Object<'_> {
    /// A value of a Secret.
    pub(super) fn data(&self, key: &str) -> Option<String> {
        if let Some(plain) = self.at(&["stringData"]).and_then(|data| data.get(key)?.as_str()) {
            return Some(plain.to_owned());
        }
        let coded = self.at(&["data"])?.get(key)?.as_str()?;
        let bytes = STANDARD.decode(coded.bytes().filter(|b| !b.is_ascii_whitespace()).collect::<Vec<u8>>()).ok()?;
        String::from_utf8(bytes).ok()
    }

    /// Adds the credential that a Secret holds for a consumer.
    fn credential(&self, consumer: &str, made: &mut Made, found: &mut Vec<Diagnostic>) {
        let label = self.at(&["metadata", "labels"]).and_then(|labels| labels.get("konghq.com/credential")?.as_str());
        let kind = label.map(str::to_owned).or_else(|| self.data("kongCredType")).unwrap_or_default();
        let (section, fields): (&'static str, &[&str]) = match kind.as_str() {
            "key-auth" | "keyauth_credential" => ("keyauth_credentials", &["key"]),
            "basic-auth" | "basicauth_credential" => ("basicauth_credentials", &["username", "password"]),
            "hmac-auth" | "hmacauth_credential" => ("hmacauth_credentials", &["username", "secret"]),
            "jwt" | "jwt_secret" => ("jwt_secrets", &["key", "secret", "rsa_public_key", "algorithm"]),
            "acl" => ("acls", &["group"]),
            other => {
                let text = format!("label konghq.com/credential: credentials of the kind '{other}' are not supported");
                found.push(fault(self.node, self.path("metadata.labels"), text));
                return;
            }
        };
        let mark = self.node.mark;
        let mut entity = map(mark, [("consumer", text(consumer))]);
        for field in fields {
            if let Some(value) = self.data(field) {
                entity.insert(field, Node { mark, kind: Kind::Str(value) });
            }
        }
        made.add(section, entity, self, "");
    }
}
