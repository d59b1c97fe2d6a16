//! Definition of a plugin: one unit struct with its name, priority, configuration, documentation and example.

use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use weir_config::prost_reflect::DescriptorPool;
use weir_config::{Code, Diagnostic, Items, Node, Proto, Severity};
use weir_net::Network;

use crate::api::ApiSet;
use crate::consumer::{ConsumerMatch, ConsumerSet, Consumers};
use crate::plans::Plans;
use crate::state::{Shared, StateRegistry};
use crate::upstreams::UpstreamSet;
use crate::{Phases, Plugin};

/// Fault of a configuration that has the right shape.
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
    /// The finding in a configuration, at the position of its field.
    pub(crate) fn locate(self, conf: &Node) -> Diagnostic {
        let mut node = conf;
        for key in self.path.split(['.', '[']).map(|k| k.trim_end_matches(']')) {
            let next = node.get(key).or_else(|| key.parse::<usize>().ok().and_then(|i| node.as_seq()?.get(i)));
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        Diagnostic { severity: self.severity, ..Diagnostic::error(node.mark, self.path, *self.code) }
    }

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

/// The part of a plugin that its author writes; [`host::Definition`](crate::host::Definition) follows from it.
pub trait Define: Sync + 'static {
    /// Its name in configurations.
    const NAME: &'static str;
    /// Order among the plugins of a phase: higher runs earlier.
    const PRIORITY: i32;
    /// The phases it may need.
    const PHASES: Phases;
    /// Description in Markdown: the text of its reference page before the table of fields.
    const DOC: &'static str;
    /// An example configuration in YAML, as it stands under `plugins.NAME`; a test runs it.
    const EXAMPLE: &'static str;

    /// Its configuration on a route, service or global rule.
    type Conf: DeserializeOwned + JsonSchema + 'static;
    /// Its configuration on a consumer or credential, for authentication plugins; else `()`.
    type ConsumerConf: DeserializeOwned + JsonSchema + 'static;

    /// True if it runs on stream routes as well: then `access` is called when a stream has found its route, and `log` at
    /// its end, without a request in the exchange; a refusal closes the connection.
    const STREAMS: bool = false;

    /// True if it runs for requests: on routes, services, consumers and as a global rule.
    const REQUESTS: bool = true;

    /// True if it authenticates: then consumers carry [`Define::ConsumerConf`].
    const AUTH: bool = false;

    /// True if it stands back in a global rule where the route has it too, from its service or plugin config as well:
    /// from the first try at a node on, only the route's runs. APISIX's `run_policy` `prefer_route`.
    const PREFERS_ROUTE: bool = false;

    /// The texts in its configurations that are secret, whether on a route or on a consumer: they are encrypted where
    /// they are stored. Those that APISIX encrypts.
    const ENCRYPTED: &'static [&'static str] = &[];

    /// Private keys in its configurations, by their paths: names between dots, `*` for every element of a list. They are
    /// encrypted where they are stored, and nobody is shown them.
    const PRIVATE_KEYS: &'static [&'static str] = &[];

    /// Places of texts with variables in its configuration, read by `Template::parse_lenient`: `abort.body`, `regex_uri.1`,
    /// and `headers.*` for every value. A variable in them that nobody knows is a warning.
    const TEMPLATES: &'static [&'static str] = &[];

    /// Checks what the type alone does not of the configuration on a consumer or credential.
    ///
    /// # Errors
    /// Everything that is wrong, and warnings.
    fn check_consumer(_conf: &Self::ConsumerConf) -> Result<(), Vec<Invalid>> {
        Ok(())
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

    /// Compiles a configuration, once for each change of it. All findings go to `cx`; `None` after an error among them,
    /// which refuses the whole change. An instance that depends on other rules is built later: [`Compiled::build`].
    fn compile(conf: Self::Conf, cx: &CompileCx<'_>) -> Option<Compiled>;

    /// Starts the work that the plugin does by its `plugin_metadata` alone, wherever it stands. The work ends when the value is
    /// dropped. [`BuildCx::conf`] is empty.
    ///
    /// # Errors
    /// Faults of the metadata.
    fn background(_cx: &BuildCx<'_>) -> Result<Option<Shared>, Invalid> {
        Ok(None)
    }

    /// Builds what all instances share to find a consumer by its credential, from what there was before and what has
    /// changed. It should share with that what did not change: there may be a million consumers.
    ///
    /// # Errors
    /// Such as two consumers with the same key: the place in [`AuthChange::came`], and what is wrong.
    fn credentials(_change: AuthChange<'_, Self::ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        Ok(Arc::new(()))
    }
}

/// Changes of the consumers for an authentication plugin.
#[derive(Debug)]
pub struct AuthChange<'a, C> {
    /// Table that [`Define::credentials`] made before, without regard to what has changed; `None`: there was nothing.
    pub held: Option<&'a Credentials>,
    /// Entries that count no more.
    pub gone: AuthEntries<'a, C>,
    /// Entries that count from now on.
    pub came: AuthEntries<'a, C>,
    /// The consumers, for messages.
    pub consumers: &'a Consumers,
}

impl<C> AuthChange<'_, C> {
    /// Table made before, in the type that the plugin built.
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
    pub(crate) unread: &'a [(ConsumerMatch, &'a Node)],
    pub(crate) read: PhantomData<C>,
}

impl<C: DeserializeOwned + JsonSchema + 'static> AuthEntries<'_, C> {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.unread.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unread.is_empty()
    }

    /// All of them, in their order; of one that cannot be read what is wrong with it.
    pub fn iter(&self) -> impl Iterator<Item = Result<AuthEntry<C>, Invalid>> {
        self.unread
            .iter()
            .map(|(who, conf)| Ok(AuthEntry { who: *who, conf: crate::host::definition::read_again(conf)? }))
    }
}

/// A lookup built by an authentication plugin from the consumers, shared by all its instances.
pub type Credentials = Arc<dyn Any + Send + Sync>;

/// A compiled configuration: an instance, or the step that builds one as soon as the rules around it are known.
pub struct Compiled(pub(crate) Stage);

type Build = Box<dyn FnOnce(&BuildCx<'_>) -> Result<Arc<dyn Plugin>, Invalid> + Send>;

/// Progress of a compiled configuration.
pub(crate) enum Stage {
    Instance(Arc<dyn Plugin>),
    Build(Build),
}

impl Compiled {
    /// An instance that depends on nothing but its configuration.
    pub fn ready(plugin: impl Plugin) -> Self {
        Self(Stage::Instance(Arc::new(plugin)))
    }

    /// An instance that `build` makes when consumers, upstreams, `plugin_metadata` and kept state are at hand. It is called
    /// once, after the whole change was found to be right, and not for a configuration that is only checked.
    pub fn build<P: Plugin>(build: impl FnOnce(&BuildCx<'_>) -> Result<P, Invalid> + Send + 'static) -> Self {
        Self(Stage::Build(Box::new(|cx| Ok(Arc::new(build(cx)?)))))
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Stage::Instance(_) => "an instance",
            Stage::Build(_) => "a step that builds an instance",
        })
    }
}

/// A configuration while it is compiled, and the findings in it.
#[derive(Debug)]
pub struct CompileCx<'a> {
    conf: &'a Node,
    pub(crate) found: RefCell<Vec<Diagnostic>>,
}

impl<'a> CompileCx<'a> {
    pub(crate) fn new(conf: &'a Node) -> Self {
        Self { conf, found: RefCell::default() }
    }

    /// The configuration as written.
    #[must_use]
    pub fn conf(&self) -> &'a Node {
        self.conf
    }

    /// The value of a result; an error becomes a finding.
    pub fn ok<T>(&self, result: Result<T, Invalid>) -> Option<T> {
        result.map_err(|fault| self.say([fault])).ok()
    }

    /// Adds findings.
    pub fn say(&self, faults: impl IntoIterator<Item = Invalid>) {
        self.add(faults.into_iter().map(|fault| fault.locate(self.conf)));
    }

    /// Adds a warning: something in `path` works, though perhaps not as its author thinks.
    pub fn warn(&self, path: impl Into<String>, text: impl Into<String>) {
        self.say([Invalid::warning(path, text)]);
    }

    /// Adds findings that have their position.
    pub fn add(&self, found: impl IntoIterator<Item = Diagnostic>) {
        found.into_iter().for_each(|found| self.found.borrow_mut().push(found));
    }
}

/// Descriptions of gRPC services by their ids.
pub trait ProtoSet: fmt::Debug {
    /// The one with this id.
    fn find(&self, id: &str) -> Option<Arc<Proto>>;
}

impl ProtoSet for Items<Proto> {
    fn find(&self, id: &str) -> Option<Arc<Proto>> {
        self.get(id).map(Arc::clone)
    }
}

/// Rules and resources around an instance that is built: [`Compiled::build`].
#[derive(Debug)]
pub struct BuildCx<'a> {
    /// The plugin's name.
    pub plugin: &'a str,
    /// Place of the configuration, such as `route/1` or `consumer/jack`: with the plugin's name and configuration
    /// the key of its state.
    pub place: &'a str,
    /// State that survives changes.
    pub states: &'a StateRegistry,
    /// The consumers.
    pub consumers: &'a dyn ConsumerSet,
    /// The plans.
    pub plans: &'a Plans,
    /// Descriptions of gRPC services.
    pub protos: &'a dyn ProtoSet,
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
    /// Zones in which caches keep answers (`cache_zones`).
    pub cache_zones: &'a [weir_config::settings::CacheZone],
    /// Name and version, for fields such as `x-mock-by`.
    pub product: &'a str,
    /// Name and version that Kong's family announces.
    pub kong: &'a weir_config::settings::Kong,
    /// Sockets, TLS and names for connections of the plugin's own.
    pub network: &'a Arc<Network>,
    /// The upstreams.
    pub upstreams: &'a dyn UpstreamSet,
    /// The APIs that plugins offer.
    pub apis: &'a dyn ApiSet,
    /// Warnings so far.
    pub warned: &'a RefCell<Vec<Diagnostic>>,
}

impl BuildCx<'_> {
    /// Adds a warning: something in `path` works, though perhaps not as its author thinks.
    pub fn warn(&self, path: impl Into<String>, text: impl Into<String>) {
        self.warned.borrow_mut().push(Invalid::warning(path, text).locate(self.conf));
    }

    /// The plugin's `plugin_metadata`; the default where there is none.
    ///
    /// # Errors
    /// The metadata cannot be read.
    pub fn metadata<M: DeserializeOwned + Default>(&self) -> Result<M, Invalid> {
        let metadata = self.metadata.map(Node::parse_into::<M>).transpose();
        Ok(metadata.map_err(|error| Invalid::new("", format!("plugin_metadata: {error}")))?.unwrap_or_default())
    }

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

    /// The description of gRPC services that `field` of the configuration names. Instances share it.
    ///
    /// # Errors
    /// There is none, or it cannot be compiled.
    pub fn proto(&self, field: &str, id: &str) -> Result<Arc<DescriptorPool>, Invalid> {
        let Some(proto) = self.protos.find(id) else {
            return Err(Invalid::coded(field, Code::NoProto { proto: id.to_owned() }));
        };
        let content = &proto.content;
        let compiled = self.states.get_or_create(&format!("proto/{content}"), || Proto::compile(content).map(Arc::new));
        Result::clone(&compiled).map_err(|reason| Invalid::coded(field, Code::InvalidProto { reason }))
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
    /// The upstream cannot be built.
    pub fn inline_upstream(&self, field: &str, upstream: &weir_config::Upstream) -> Result<u32, Invalid> {
        let place = format!("{}/{}/{field}", self.place, self.plugin);
        self.upstreams.add(upstream, &place).map_err(|fault| {
            let fault = fault.under(field);
            Invalid::coded(fault.path, *fault.code)
        })
    }
}
