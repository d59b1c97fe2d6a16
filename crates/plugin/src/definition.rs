//! How a plugin is defined: one unit struct with its name, priority, configuration, documentation and example.

use std::any::Any;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use weir_config::diagnostic::nearest;
use weir_config::schema::{Checker, ignore_unknown, json_schema};
use weir_config::{Code, Diagnostic, Hint, Node, Scope, Severity};
use weir_expr::Template;
use weir_net::Network;

use crate::api::ApiSet;
use crate::consumer::{ConsumerMatch, ConsumerSet, Consumers};
use crate::state::StateRegistry;
use crate::upstreams::UpstreamSet;
use crate::{Phases, Plugin};

/// What is wrong with a configuration that has the right shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Invalid {
    /// The field, relative to the plugin's configuration.
    pub path: String,
    /// Fault, with its data.
    pub code: Box<Code>,
    /// A warning does not keep the plugin from being built.
    pub severity: Severity,
}

impl Invalid {
    /// A fault in `path` against a rule of the plugin's own: what was expected.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self::coded(path, Code::PluginRule { text: Cow::Owned(text.into()) })
    }

    /// A fault in `path` that is not this plugin's alone.
    pub fn coded(path: impl Into<String>, code: Code) -> Self {
        Self { path: path.into(), code: Box::new(code), severity: Severity::Error }
    }

    /// Something in `path` that works, though perhaps not as its author thinks.
    pub fn warning(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::new(path, text) }
    }
}

/// What the author of a plugin writes; [`Definition`] follows from it.
pub trait Define: Sync + 'static {
    /// Its name in configurations.
    const NAME: &'static str;
    /// Where it runs among the others of a phase: higher runs earlier.
    const PRIORITY: i32;
    /// The phases it may need.
    const PHASES: Phases;
    /// What it does, in Markdown: the text of its reference page before the table of fields.
    const DOC: &'static str;
    /// An example configuration in YAML, as it stands under `plugins.NAME`; a test runs it.
    const EXAMPLE: &'static str;

    /// Its configuration on a route, service or global rule.
    type Conf: DeserializeOwned + JsonSchema + 'static;
    /// Its configuration on a consumer or credential, for authentication plugins; else `()`.
    type ConsumerConf: DeserializeOwned + JsonSchema + 'static;

    /// Whether it authenticates: then consumers carry [`Define::ConsumerConf`].
    const AUTH: bool = false;

    /// Whether it stands back in a global rule where the route has it too, from its service or plugin config as well:
    /// from the first try at a node on, only the route's runs. APISIX's `run_policy` `prefer_route`.
    const PREFERS_ROUTE: bool = false;

    /// The texts in its configurations that are secret, whether on a route or on a consumer: they are encrypted where
    /// they are stored. Those that APISIX encrypts.
    const ENCRYPTED: &'static [&'static str] = &[];

    /// Private keys in its configurations, by their paths: names between dots, `*` for every element of a list. They are
    /// encrypted where they are stored, and nobody is shown them.
    const PRIVATE_KEYS: &'static [&'static str] = &[];

    /// Where texts with variables stand in its configuration, read by `Template::parse_lenient`: `abort.body`, `regex_uri.1`,
    /// and `headers.*` for every value. A variable in them that nobody knows is a warning.
    const TEMPLATES: &'static [&'static str] = &[];

    /// Checks what the type alone does not.
    ///
    /// # Errors
    /// Everything that is wrong, and warnings.
    fn check(_conf: &Self::Conf) -> Result<(), Vec<Invalid>> {
        Ok(())
    }

    /// Checks what the type alone does not of the configuration on a consumer or credential.
    ///
    /// # Errors
    /// Everything that is wrong, and warnings.
    fn check_consumer(_conf: &Self::ConsumerConf) -> Result<(), Vec<Invalid>> {
        Ok(())
    }

    /// Checks what stands in the configuration and has rules of its own, such as an upstream: all findings, with paths
    /// from the configuration on.
    fn check_tree(_conf: &Node) -> Vec<Diagnostic> {
        Vec::new()
    }

    /// The JSON Schema of the plugin's `plugin_metadata`, where it has one: `Some(json_schema::<Metadata>())`.
    fn metadata_schema() -> Option<Schema> {
        None
    }

    /// Checks the plugin's `plugin_metadata`. Most plugins have none.
    ///
    /// # Errors
    /// Everything that is wrong, and warnings.
    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        match metadata.as_map() {
            Some([]) => Ok(()),
            _ => Err(vec![Diagnostic::warning(metadata.mark, "", Code::NoMetadata)]),
        }
    }

    /// Builds an instance from a checked configuration.
    ///
    /// # Errors
    /// What keeps it from being built; the whole change is then refused.
    fn build(conf: Self::Conf, cx: &BuildCx<'_>) -> Result<Arc<dyn Plugin>, Invalid>;

    /// Builds what all instances share to find a consumer by its credential, from what there was before and what has
    /// changed. It should share with that what did not change: there may be a million consumers.
    ///
    /// # Errors
    /// Such as two consumers with the same key: the place in [`AuthChange::came`], and what is wrong.
    fn credentials(_change: AuthChange<'_, Self::ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        Ok(Arc::new(()))
    }
}

/// What has changed of the consumers for an authentication plugin.
#[derive(Debug)]
pub struct AuthChange<'a, C> {
    /// What [`Define::credentials`] made before, without regard to what has changed; `None`: there was nothing.
    pub held: Option<&'a Credentials>,
    /// What counts no more.
    pub gone: AuthEntries<'a, C>,
    /// What counts from now on.
    pub came: AuthEntries<'a, C>,
    /// The consumers, for messages.
    pub consumers: &'a Consumers,
}

impl<C> AuthChange<'_, C> {
    /// What was there before, in the type that the plugin built.
    #[must_use]
    pub fn held<T: Any>(&self) -> Option<&T> {
        self.held.and_then(|held| held.downcast_ref())
    }

    /// A consumer's name, for messages.
    #[must_use]
    pub fn name_of(&self, who: ConsumerMatch) -> &str {
        self.consumers.get(who.consumer).map_or("", |consumer| &consumer.name.text)
    }
}

/// The same, before the entries are read.
#[derive(Debug)]
pub struct CredentialChange<'a> {
    /// What was built before.
    pub held: Option<&'a Credentials>,
    /// What counts no more: whom it means, and the data.
    pub gone: &'a [(ConsumerMatch, &'a Node)],
    /// What counts from now on.
    pub came: &'a [(ConsumerMatch, &'a Node)],
    /// The consumers, for messages.
    pub consumers: &'a Consumers,
}

/// One consumer's or credential's data for an authentication plugin.
#[derive(Debug)]
pub struct AuthEntry<C> {
    /// Whom it means.
    pub who: ConsumerMatch,
    /// The data.
    pub conf: C,
}

/// Data of consumers and credentials, each read when it is its turn: there may be a million.
#[derive(Debug)]
pub struct AuthEntries<'a, C> {
    unread: &'a [(ConsumerMatch, &'a Node)],
    read: PhantomData<C>,
}

impl<C: DeserializeOwned + JsonSchema + 'static> AuthEntries<'_, C> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.unread.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unread.is_empty()
    }

    /// All of them, in their order; of one that cannot be read what is wrong with it.
    pub fn iter(&self) -> impl Iterator<Item = Result<AuthEntry<C>, Invalid>> {
        self.unread.iter().map(|(who, conf)| Ok(AuthEntry { who: *who, conf: read_again(conf)? }))
    }
}

/// A lookup built by an authentication plugin from the consumers, shared by all its instances.
pub type Credentials = Arc<dyn Any + Send + Sync>;

/// What a plugin may use while it is built.
#[derive(Debug)]
pub struct BuildCx<'a> {
    /// The plugin's name.
    pub plugin: &'a str,
    /// Where the configuration stands, such as `route/1` or `consumer/jack`: with the plugin's name and configuration
    /// the key of its state.
    pub place: &'a str,
    /// State that survives changes.
    pub states: &'a StateRegistry,
    /// The consumers.
    pub consumers: &'a dyn ConsumerSet,
    /// The plugin's position in the registry, under which an authentication plugin finds what [`Define::credentials`]
    /// built: `RequestCx::credentials`.
    pub position: u8,
    /// The plugin's configuration as written, for keys of state.
    pub conf: &'a Node,
    /// Most keys one limiter may hold (`limits.limit_keys`).
    pub limit_keys: usize,
    /// The plugin's `plugin_metadata`, where there is one.
    pub metadata: Option<&'a Node>,
    /// The port at which clients reach the gateway over HTTPS (`redirect.https_port`).
    pub https_port: u16,
    /// Name and version, as told in fields such as `x-mock-by`.
    pub product: &'a str,
    /// What connections of the plugin's own are made with.
    pub network: &'a Arc<Network>,
    /// The upstreams.
    pub upstreams: &'a dyn UpstreamSet,
    /// The APIs that plugins offer.
    pub apis: &'a dyn ApiSet,
}

impl BuildCx<'_> {
    /// The dense id of a consumer that the configuration names, such as `anonymous_consumer`. `None` while there is no such
    /// consumer, of which a warning is made; the plugin is built anew when it comes.
    #[must_use]
    pub fn consumer(&self, field: &str, name: &str) -> Option<u32> {
        let found = self.consumers.find(name);
        if found.is_none() {
            self.consumers.wait_for(field, name);
        }
        found
    }

    /// The number of the upstream that `field` of the configuration names.
    ///
    /// # Errors
    /// There is no such upstream, or it cannot be built.
    pub fn upstream(&self, field: &str, id: &str) -> Result<u32, Invalid> {
        match self.upstreams.find(id) {
            Ok(Some(number)) => Ok(number),
            Ok(None) => Err(Invalid::coded(field, Code::NoUpstream { upstream: id.to_owned() })),
            Err(fault) => {
                let code = Code::UnbuildableUpstream { upstream: id.to_owned(), of: fault.code };
                Err(Invalid::coded(field, code))
            }
        }
    }

    /// The number of an upstream that is written in `field` of the configuration, or follows from it.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn inline_upstream(&self, field: &str, upstream: &weir_config::Upstream) -> Result<u32, Invalid> {
        let place = format!("{}/{}/{field}", self.place, self.plugin);
        self.upstreams.add(upstream, &place).map_err(|fault| {
            let fault = fault.under(field);
            Invalid::coded(fault.path, *fault.code)
        })
    }
}

/// A plugin's definition without its types, as the registry lists it.
pub trait Definition: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Its priority.
    fn priority(&self) -> i32;
    /// The phases it may need.
    fn phases(&self) -> Phases;
    /// Whether it authenticates.
    fn is_auth(&self) -> bool;
    /// Whether it stands back in a global rule for the route's own: [`Define::PREFERS_ROUTE`].
    fn prefers_route(&self) -> bool;
    /// The texts in its configurations that are secret.
    fn encrypted(&self) -> &'static [&'static str];
    /// The private keys in its configurations.
    fn private_keys(&self) -> &'static [&'static str];
    /// What it does, in Markdown.
    fn doc(&self) -> &'static str;
    /// An example configuration in YAML.
    fn example(&self) -> &'static str;
    /// The JSON Schema of its configuration.
    fn schema(&self) -> Schema;
    /// The JSON Schema of its configuration on consumers.
    fn consumer_schema(&self) -> Option<Schema>;
    /// The JSON Schema of its `plugin_metadata`.
    fn metadata_schema(&self) -> Option<Schema>;
    /// Checks a configuration.
    ///
    /// # Errors
    /// Everything that is wrong, with positions; warnings are among it, and when there is nothing else the
    /// configuration can be built.
    fn check(&self, scope: Scope, conf: &Node) -> Result<(), Vec<Diagnostic>>;
    /// Builds an instance.
    ///
    /// # Errors
    /// What is wrong, with its position.
    fn build(&self, conf: &Node, cx: &BuildCx<'_>) -> Result<Arc<dyn Plugin>, Diagnostic>;
    /// Builds the lookup of consumers.
    ///
    /// # Errors
    /// The entry (its place in [`CredentialChange::came`]) and what is wrong with it.
    fn credentials(&self, change: &CredentialChange<'_>) -> Result<Credentials, (usize, Box<Diagnostic>)>;
}

impl<T: Define> Definition for T {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn priority(&self) -> i32 {
        T::PRIORITY
    }

    fn phases(&self) -> Phases {
        T::PHASES
    }

    fn is_auth(&self) -> bool {
        T::AUTH
    }

    fn prefers_route(&self) -> bool {
        T::PREFERS_ROUTE
    }

    fn encrypted(&self) -> &'static [&'static str] {
        T::ENCRYPTED
    }

    fn private_keys(&self) -> &'static [&'static str] {
        T::PRIVATE_KEYS
    }

    fn doc(&self) -> &'static str {
        T::DOC
    }

    fn example(&self) -> &'static str {
        T::EXAMPLE
    }

    fn schema(&self) -> Schema {
        json_schema::<T::Conf>()
    }

    fn consumer_schema(&self) -> Option<Schema> {
        T::AUTH.then(json_schema::<T::ConsumerConf>)
    }

    fn metadata_schema(&self) -> Option<Schema> {
        T::metadata_schema()
    }

    fn check(&self, scope: Scope, conf: &Node) -> Result<(), Vec<Diagnostic>> {
        if scope == Scope::Metadata {
            let mut found = T::check_metadata(conf).err().unwrap_or_default();
            found.extend(unknown_metadata(T::metadata_schema().as_ref(), conf));
            return if found.is_empty() { Ok(()) } else { Err(found) };
        }
        if scope == Scope::Consumer && T::AUTH {
            let (typed, mut found) = read::<T::ConsumerConf>(conf);
            tell_other_place::<T::Conf>(&mut found, || {
                format!("it belongs to {} on a route, a service or a global rule", T::NAME)
            });
            if let Some(Err(faults)) = typed.as_ref().map(T::check_consumer) {
                found.extend(faults.into_iter().map(|fault| locate(conf, fault)));
            }
            return if found.is_empty() { Ok(()) } else { Err(unquoted::<T>(conf, found)) };
        }
        let (typed, mut found) = read::<T::Conf>(conf);
        if T::AUTH {
            tell_other_place::<T::ConsumerConf>(&mut found, || {
                format!("it belongs to {} on a consumer or credential", T::NAME)
            });
        }
        if let Some(Err(faults)) = typed.as_ref().map(T::check) {
            found.extend(faults.into_iter().map(|fault| locate(conf, fault)));
        }
        if typed.is_some() {
            found.extend(T::check_tree(conf));
            T::TEMPLATES.iter().for_each(|place| unknown_variables(conf, "", place, &mut found));
        }
        if found.is_empty() { Ok(()) } else { Err(unquoted::<T>(conf, found)) }
    }

    fn build(&self, conf: &Node, cx: &BuildCx<'_>) -> Result<Arc<dyn Plugin>, Diagnostic> {
        let (typed, found) = read::<T::Conf>(conf);
        let typed = typed.ok_or_else(|| first_error(conf, found))?;
        T::build(typed, cx).map_err(|fault| locate(conf, fault))
    }

    fn credentials(&self, change: &CredentialChange<'_>) -> Result<Credentials, (usize, Box<Diagnostic>)> {
        let gone = AuthEntries { unread: change.gone, read: PhantomData };
        let came = AuthEntries { unread: change.came, read: PhantomData };
        let typed = AuthChange { held: change.held, gone, came, consumers: change.consumers };
        T::credentials(typed).map_err(|(at, fault)| {
            let found = change.came.get(at).map(|(_, conf)| locate(conf, fault.clone()));
            let found = found.unwrap_or_else(|| Diagnostic::error(weir_config::Mark::NONE, fault.path, *fault.code));
            (at, Box::new(found))
        })
    }
}

/// Findings without the secrets that they quote.
fn unquoted<T: Define>(conf: &Node, found: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut secrets = Vec::new();
    for path in T::ENCRYPTED.iter().chain(T::PRIVATE_KEYS) {
        values_at(conf, path, &mut secrets);
    }
    found.into_iter().map(|found| secrets.iter().fold(found, |found, secret| found.without(secret))).collect()
}

/// The values at a path of names, in which `*` stands for every element of a list.
fn values_at<'a>(node: &'a Node, path: &str, values: &mut Vec<&'a Node>) {
    let (step, rest) = path.split_once('.').unwrap_or((path, ""));
    match step {
        "" => values.push(node),
        "*" => node.as_seq().into_iter().flatten().for_each(|item| values_at(item, rest, values)),
        name => node.get(name).into_iter().for_each(|field| values_at(field, rest, values)),
    }
}

/// Warns of variables that nobody knows in the texts at `place` under `node`, which stands at `path`.
fn unknown_variables(node: &Node, path: &str, place: &str, found: &mut Vec<Diagnostic>) {
    if place.is_empty() {
        for error in node.as_str().into_iter().flat_map(Template::unknown) {
            let then = if error.reason.is_doubtful() { "" } else { "; it counts as not set" };
            let code = Code::UnknownVariable { reason: error.to_string(), then };
            found.push(Diagnostic::warning(node.mark, path, code));
        }
        return;
    }
    let (step, rest) = place.split_once('.').unwrap_or((place, ""));
    let under = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    for (at, item) in node.as_seq().into_iter().flatten().enumerate() {
        if step == "*" || step.parse() == Ok(at) {
            unknown_variables(item, &format!("{path}[{at}]"), rest, found);
        }
    }
    for (key, value) in node.as_map().into_iter().flatten() {
        if step == "*" || step == &*key.text {
            unknown_variables(value, &under(&key.text), rest, found);
        }
    }
}

/// Says of fields that are not known here, and are in the plugin's configuration in another place, where they belong.
fn tell_other_place<C: JsonSchema>(found: &mut [Diagnostic], place: impl Fn() -> String) {
    if found.is_empty() {
        return;
    }
    let schema = json_schema::<C>();
    let fields = schema.get("properties").and_then(|fields| fields.as_object());
    for fault in found.iter_mut().filter(|fault| fault.code.is_unknown_field()) {
        if fields.is_some_and(|fields| fields.contains_key(&fault.path)) {
            fault.hint = Some(place().into());
        }
    }
}

/// Reads a configuration that was checked before, without the check against the schema, which a million consumers would
/// make slow.
fn read_again<C: DeserializeOwned + JsonSchema + 'static>(conf: &Node) -> Result<C, Invalid> {
    conf.parse_into().or_else(|_| {
        let (typed, found) = read(conf);
        typed.ok_or_else(|| {
            let error = first_error(conf, found);
            Invalid::coded(error.path, *error.code)
        })
    })
}

/// Reads a configuration: its type, unless something is wrong with it, and what there is to say about it.
///
/// A field that is not known is a warning, wherever it stands: most of APISIX's plugin schemas are open, and real files
/// carry fields that never had an effect.
fn read<C: DeserializeOwned + JsonSchema + 'static>(conf: &Node) -> (Option<C>, Vec<Diagnostic>) {
    let mut found = Checker::of::<C>().check(conf);
    let known = ignore_unknown(conf, &mut found, |_, _| true);
    if found.iter().any(Diagnostic::is_error) {
        return (None, found);
    }
    match known.parse_into() {
        Ok(typed) => (Some(typed), found),
        Err(error) => {
            found.push(error);
            (None, found)
        }
    }
}

/// A warning for each field of a plugin's metadata that the plugin does not know. APISIX takes any.
fn unknown_metadata(schema: Option<&Schema>, metadata: &Node) -> Vec<Diagnostic> {
    let known = schema.and_then(|schema| schema.get("properties")?.as_object());
    let Some(known) = known else { return Vec::new() };
    let unknown = metadata.as_map().unwrap_or_default().iter().filter(|(key, _)| !known.contains_key(&*key.text));
    let told = unknown.map(|(key, _)| {
        let warning = Diagnostic::warning(key.mark, &*key.text, Code::UnknownFieldIgnored);
        let hint = Hint::nearest(nearest(&key.text, known.keys().map(String::as_str)));
        Diagnostic { hint, ..warning }
    });
    told.collect()
}

fn first_error(conf: &Node, found: Vec<Diagnostic>) -> Diagnostic {
    let error = found.into_iter().find(Diagnostic::is_error);
    error.unwrap_or_else(|| {
        Diagnostic::error(conf.mark, "", Code::Unreadable { reason: "the configuration cannot be read".to_owned() })
    })
}

/// Finds the position of the field a fault is about.
fn locate(conf: &Node, fault: Invalid) -> Diagnostic {
    let mut node = conf;
    for key in fault.path.split(['.', '[']).map(|k| k.trim_end_matches(']')) {
        let next = node.get(key).or_else(|| key.parse::<usize>().ok().and_then(|i| node.as_seq()?.get(i)));
        match next {
            Some(next) => node = next,
            None => break,
        }
    }
    Diagnostic { severity: fault.severity, ..Diagnostic::error(node.mark, fault.path, *fault.code) }
}
