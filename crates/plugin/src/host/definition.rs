//! Definitions of plugins as the registry lists them and the data plane compiles them.

use std::marker::PhantomData;
use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use weir_config::diagnostic::nearest;
use weir_config::schema::{Checker, ignore_unknown, json_schema};
use weir_config::{Code, Diagnostic, Hint, Node, Scope};
use weir_expr::Template;

use crate::consumer::{ConsumerMatch, Consumers};
use crate::definition::{AuthChange, AuthEntries, BuildCx, CompileCx, Compiled, Credentials, Define, Invalid, Stage};
use crate::{Phases, Plugin, Shared};

/// A configuration between its check and the build of its instance.
#[derive(Debug)]
pub struct Prepared {
    /// Name of the plugin.
    pub plugin: &'static str,
    /// Result of [`Define::compile`].
    pub compiled: Compiled,
    /// Bytes that it takes, as `weir_expr::spend` counts them.
    pub size: u64,
    /// True if it reads variables that stand in the body of requests.
    pub reads_body: bool,
}

impl Prepared {
    /// Builds the instance.
    ///
    /// # Errors
    /// A fault that depends on other rules.
    pub fn build(self, cx: &BuildCx<'_>) -> Result<Instance, Invalid> {
        let Self { compiled, size, reads_body, .. } = self;
        // The budget of what is built, not of what is checked, has to hold it.
        weir_expr::spend(size)
            .map_err(|error| Invalid::coded("", Code::TooLarge { what: String::new(), reason: error.to_string() }))?;
        let build = match compiled.0 {
            Stage::Instance(plugin) => return Ok(Instance { plugin, reads_body }),
            Stage::Build(build) => build,
        };
        let (built, reads_too) = weir_expr::finds_body_reading(|| build(cx));
        Ok(Instance { plugin: built?, reads_body: reads_body || reads_too })
    }
}

/// An instance of a plugin.
pub struct Instance {
    /// The instance itself.
    pub plugin: Arc<dyn Plugin>,
    /// True if it reads variables that stand in the body of requests.
    pub reads_body: bool,
}

/// A change of consumers for an authentication plugin, before its entries are read.
#[derive(Debug)]
pub struct CredentialChange<'a> {
    /// Table built before.
    pub held: Option<&'a Credentials>,
    /// Entries that count no more: the consumer, and the data.
    pub gone: &'a [(ConsumerMatch, &'a Node)],
    /// Entries that count from now on.
    pub came: &'a [(ConsumerMatch, &'a Node)],
    /// The consumers, for messages.
    pub consumers: &'a Consumers,
}

/// A plugin's definition without its types, as the registry lists it.
pub trait Definition: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Its priority.
    fn priority(&self) -> i32;
    /// The phases it may need.
    fn phases(&self) -> Phases;
    /// True if it authenticates.
    fn is_auth(&self) -> bool {
        false
    }
    /// True if it runs on stream routes.
    fn is_for_streams(&self) -> bool {
        false
    }
    /// True if it runs for requests.
    fn is_for_requests(&self) -> bool {
        true
    }
    /// True if it stands back in a global rule for the route's own: [`Define::PREFERS_ROUTE`].
    fn prefers_route(&self) -> bool {
        false
    }
    /// The texts in its configurations that are secret.
    fn encrypted(&self) -> &'static [&'static str] {
        &[]
    }
    /// The private keys in its configurations.
    fn private_keys(&self) -> &'static [&'static str] {
        &[]
    }
    /// Description in Markdown.
    fn doc(&self) -> &'static str;
    /// An example configuration in YAML.
    fn example(&self) -> &'static str;
    /// The JSON Schema of its configuration.
    fn schema(&self) -> Schema;
    /// The JSON Schema of its configuration on consumers.
    fn consumer_schema(&self) -> Option<Schema> {
        None
    }
    /// The JSON Schema of its `plugin_metadata`.
    fn metadata_schema(&self) -> Option<Schema> {
        None
    }
    /// Checks a configuration, and compiles it where an instance is built of it: all findings, and `None` with an error
    /// among them, in `plugin_metadata`, and for the data of consumers.
    fn check(&self, scope: Scope, conf: &Node) -> (Vec<Diagnostic>, Option<Prepared>);
    /// Builds the instance of a configuration.
    ///
    /// # Errors
    /// A fault that depends on other rules, with its position.
    fn build(&self, prepared: Prepared, cx: &BuildCx<'_>) -> Result<Instance, Diagnostic>;
    /// Starts the work that the plugin does by its `plugin_metadata` alone.
    ///
    /// # Errors
    /// Faults of the metadata.
    fn background(&self, _cx: &BuildCx<'_>) -> Result<Option<Shared>, Invalid> {
        Ok(None)
    }
    /// Builds the lookup of consumers.
    ///
    /// # Errors
    /// The entry (its place in [`CredentialChange::came`]) and what is wrong with it.
    fn credentials(&self, _change: &CredentialChange<'_>) -> Result<Credentials, (usize, Box<Diagnostic>)> {
        Ok(Arc::new(()))
    }
}

impl dyn Definition {
    /// Compiles a configuration that nobody has compiled before, and builds its instance.
    ///
    /// # Errors
    /// The first error in it, with its position.
    pub fn compile(&self, cx: &BuildCx<'_>) -> Result<Instance, Diagnostic> {
        let scope = if self.is_for_requests() { Scope::Route } else { Scope::StreamRoute };
        match self.check(scope, cx.conf) {
            (_, Some(prepared)) => self.build(prepared, cx),
            (found, None) => Err(first_error(cx.conf, found)),
        }
    }
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

    fn is_for_streams(&self) -> bool {
        T::STREAMS
    }

    fn is_for_requests(&self) -> bool {
        T::REQUESTS
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

    fn check(&self, scope: Scope, conf: &Node) -> (Vec<Diagnostic>, Option<Prepared>) {
        match scope {
            Scope::Metadata => {
                let mut found = T::check_metadata(conf).err().unwrap_or_default();
                found.extend(unknown_metadata(T::metadata_schema().as_ref(), conf));
                (found, None)
            }
            Scope::StreamRoute if !T::STREAMS => {
                let what = format!("the plugin {}", T::NAME);
                (vec![Diagnostic::error(conf.mark, "", Code::NotOnStreams { what })], None)
            }
            Scope::Consumer | Scope::Route | Scope::GlobalRule if !T::REQUESTS => {
                let text = format!("the plugin {} runs on stream routes only", T::NAME).into();
                (vec![Diagnostic::error(conf.mark, "", Code::PluginRule { text })], None)
            }
            Scope::Consumer if T::AUTH => (check_consumer::<T>(conf), None),
            Scope::Consumer | Scope::Route | Scope::GlobalRule | Scope::StreamRoute => compile::<T>(conf),
        }
    }

    fn build(&self, prepared: Prepared, cx: &BuildCx<'_>) -> Result<Instance, Diagnostic> {
        prepared.build(cx).map_err(|fault| first_error(cx.conf, unquoted::<T>(cx.conf, vec![fault.locate(cx.conf)])))
    }

    fn background(&self, cx: &BuildCx<'_>) -> Result<Option<Shared>, Invalid> {
        T::background(cx)
    }

    fn credentials(&self, change: &CredentialChange<'_>) -> Result<Credentials, (usize, Box<Diagnostic>)> {
        let gone = AuthEntries { unread: change.gone, read: PhantomData };
        let came = AuthEntries { unread: change.came, read: PhantomData };
        let typed = AuthChange { held: change.held, gone, came, consumers: change.consumers };
        T::credentials(typed).map_err(|(at, fault)| {
            let found = change.came.get(at).map(|(_, conf)| fault.clone().locate(conf));
            let found = found.unwrap_or_else(|| Diagnostic::error(weir_config::Mark::NONE, fault.path, *fault.code));
            (at, Box::new(found))
        })
    }
}

/// Findings in the data of a consumer or credential.
fn check_consumer<T: Define>(conf: &Node) -> Vec<Diagnostic> {
    let (typed, mut found) = read::<T::ConsumerConf>(conf);
    tell_other_place::<T::Conf>(&mut found, || {
        format!("it belongs to {} on a route, a service or a global rule", T::NAME)
    });
    if let Some(Err(faults)) = typed.as_ref().map(T::check_consumer) {
        found.extend(faults.into_iter().map(|fault| fault.locate(conf)));
    }
    unquoted::<T>(conf, found)
}

/// Checks and compiles a configuration.
fn compile<T: Define>(conf: &Node) -> (Vec<Diagnostic>, Option<Prepared>) {
    // Conditions are parsed as they are read.
    let ((typed, mut found), conditions_read_body) = weir_expr::finds_body_reading(|| read::<T::Conf>(conf));
    if T::AUTH {
        tell_other_place::<T::ConsumerConf>(&mut found, || {
            format!("it belongs to {} on a consumer or credential", T::NAME)
        });
    }
    let prepared = typed.and_then(|typed| {
        let cx = CompileCx::new(conf);
        let work = || weir_expr::counted(|| T::compile(typed, &cx));
        let ((compiled, size), compiled_reads_body) = weir_expr::finds_body_reading(work);
        let reads_body = conditions_read_body || compiled_reads_body;
        found.extend(cx.found.into_inner());
        T::TEMPLATES.iter().for_each(|place| unknown_variables(conf, "", place, &mut found));
        Some(Prepared { plugin: T::NAME, compiled: compiled?, size, reads_body })
    });
    let prepared = prepared.filter(|_| !found.iter().any(Diagnostic::is_error));
    (unquoted::<T>(conf, found), prepared)
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
pub(crate) fn read_again<C: DeserializeOwned + JsonSchema + 'static>(conf: &Node) -> Result<C, Invalid> {
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
