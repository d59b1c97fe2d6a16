//! Loading of a rules file: from its bytes to a [`Document`], with all findings on the way.

mod change;
mod checks;
mod document;
mod ending;
mod foreign;
mod item;
mod kinds;
mod left_out;
mod link;
mod lone;
mod pem;
mod plan_limits;
mod plugins;
mod reserve;
mod rules;
mod text;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::catalog::{APISIX_PLUGINS, CompiledConfs, NoPlugins, PluginCatalog};
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::env::{MayRead, Variables};
use crate::front_end::{APISIX, Apisix, Family, FrontEnd, Origins};
use crate::kind::ResourceKind;
use crate::node::{Mark, Node, Path};
use crate::resource::{Document, HostPattern, Id, Route, SecretManager};
use crate::secret::{NoSecrets, References, Revealed, SecretSource, Unresolved};
use crate::settings::RouterMode;
pub use change::Changed;
pub use ending::Ending;
pub(crate) use foreign::identify;
pub(crate) use kinds::Item;
pub use left_out::place_of;
pub use lone::{Written, check_item, in_force, items, lowered, schema_of};
pub(crate) use rules::prepare_upstream;

/// Reads a rules file.
///
/// `name` is only for messages. All faults are reported at once, by position; with an error and
/// [`InvalidItems::Refuse`] there is no document.
pub fn load(name: &str, text: &[u8], options: &LoadOptions<'_>) -> Loaded {
    let mut loader = Loader::new(options);
    let document = loader.text(text).and_then(|root| loader.document(root));
    loader.finish(name, document)
}

/// Reads the text of a rules file as far as the tree, with its variables replaced; what is in it is not looked at. The
/// tree is there unless the text is refused.
pub fn read(name: &str, text: &[u8], options: &LoadOptions<'_>) -> (Option<Node>, Vec<Diagnostic>) {
    let mut loader = Loader::new(options);
    let root = loader.text(text);
    let refused = loader.refused;
    let diagnostics = loader.finish(name, None).diagnostics;
    (root.filter(|_| !refused), diagnostics)
}

/// Reads rules that are a tree already, such as the body of an API request or the values of a store.
pub fn load_node(name: &str, root: Node, options: &LoadOptions<'_>) -> Loaded {
    let mut loader = Loader::new(options);
    let document = loader.document(root);
    loader.finish(name, document)
}

/// Reads a document of a family that is a tree already.
pub fn lower_node<'a>(name: &str, root: Node, front_end: &'a dyn FrontEnd, options: &LoadOptions<'a>) -> Loaded {
    let mut loader = Loader::new(options);
    let root = loader.lower(root, front_end);
    let document = loader.document(root);
    loader.finish(name, document)
}

/// Options for reading a rules file.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// Treatment of a file with an invalid item.
    pub invalid_items: InvalidItems,
    /// Refuses what is otherwise only warned about: a YAML file without `#END` (it may be half written), and `[]` for
    /// a document.
    pub strict: bool,
    /// Variables for `${{NAME}}` and `$env://NAME`.
    pub variables: Variables<'a>,
    /// Decides if `$env://NAME` may be read; the error is the reason against it.
    pub may_read: MayRead<'a>,
    /// Source of the values of `$secret://MANAGER/ID/KEY`.
    pub secrets: &'a dyn SecretSource,
    /// The plugins there are.
    pub plugins: &'a dyn PluginCatalog,
    /// The router that will match the routes, for warnings about paths it takes literally.
    pub router: RouterMode,
    /// The families whose documents are read.
    pub front_ends: &'a [&'a dyn FrontEnd],
}

impl LoadOptions<'_> {
    /// Neither strict nor lenient, with nothing around the file: no variables, no secrets, no plugins.
    pub const PLAIN: LoadOptions<'static> = LoadOptions {
        invalid_items: InvalidItems::Refuse,
        strict: false,
        variables: &|_| None,
        may_read: &|_| Ok(()),
        secrets: &NoSecrets,
        plugins: &NoPlugins,
        router: RouterMode::RadixtreeHostUri,
        front_ends: &[&Apisix],
    };
}

/// Treatment of a file with an invalid item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InvalidItems {
    /// The whole file is refused.
    #[default]
    Refuse,
    /// The item alone is dropped, and with it the items that refer to it, as APISIX does.
    Skip,
}

/// Result of reading a rules file.
#[derive(Debug)]
pub struct Loaded {
    /// The rules; `None` when they are refused.
    pub document: Option<Document>,
    /// Errors and warnings, by position.
    pub diagnostics: Vec<Diagnostic>,
    /// The items that are not in the document because they are invalid.
    pub dropped: Vec<Dropped>,
    /// The secrets in the document, to be taken out of every text about it.
    pub revealed: Revealed,
}

/// An item that was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Path in the document: `routes[3]`.
    pub path: String,
    /// Id, if the item has a readable one.
    pub id: Option<String>,
}

impl Loaded {
    /// The errors among the diagnostics.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|found| found.is_error())
    }

    /// The warnings among the diagnostics.
    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|found| !found.is_error())
    }
}

/// One run of [`load`].
pub(crate) struct Loader<'a> {
    options: &'a LoadOptions<'a>,
    /// Family of the document.
    family: &'static Family,
    /// The plugins of the family.
    plugins: &'a dyn PluginCatalog,
    plugin_names: HashSet<&'a str>,
    /// Names of the gateway's and of APISIX's plugins, sorted, for the nearest one to a misspelt name.
    known_plugins: Vec<&'a str>,
    found: Vec<Diagnostic>,
    /// Number of findings whose paths are those of the document as written; those of the others are lowered.
    written: usize,
    /// The entities that the items were made from.
    origins: Origins,
    dropped: Vec<Dropped>,
    /// Secret managers; `None` until they were read.
    managers: Option<HashMap<String, Arc<SecretManager>>>,
    revealed: Revealed,
    /// Paths of references to secrets whose managers were not queried.
    left_references: Vec<String>,
    /// Paths of references whose values are not there.
    unresolved: HashSet<String>,
    /// Paths whose faults have all been reported.
    settled: Vec<String>,
    /// Ids of items that are there but invalid, by kind.
    invalid_ids: HashMap<ResourceKind, HashSet<String>>,
    /// Routes that are left out, with nothing but their places.
    kept_places: Vec<Route>,
    /// Routes that cannot be left out, because their places are not known.
    unplaced: Vec<Diagnostic>,
    /// Hosts of services that are left out, where they can be read, by id.
    lost_hosts: HashMap<String, Option<Vec<HostPattern>>>,
    /// Errors in the text that belong to an item, by the item's path.
    text_errors: HashMap<String, Vec<Diagnostic>>,
    /// True if there is an error that no dropped item can put right.
    refused: bool,
    /// Plugins that were compiled to check their configurations.
    compiled: CompiledConfs,
    /// Ids that many items refer to.
    common_ids: HashSet<Id>,
    /// Number of names that may still be compared to find the one that was meant.
    comparisons: usize,
}

impl<'a> Loader<'a> {
    fn new(options: &'a LoadOptions<'a>) -> Self {
        let mut loader = Self {
            options,
            family: &APISIX,
            plugins: options.plugins,
            plugin_names: HashSet::new(),
            known_plugins: Vec::new(),
            found: Vec::new(),
            written: 0,
            origins: Origins::default(),
            dropped: Vec::new(),
            managers: None,
            revealed: Revealed::default(),
            left_references: Vec::new(),
            unresolved: HashSet::new(),
            settled: Vec::new(),
            invalid_ids: HashMap::new(),
            common_ids: HashSet::new(),
            kept_places: Vec::new(),
            unplaced: Vec::new(),
            lost_hosts: HashMap::new(),
            text_errors: HashMap::new(),
            refused: false,
            compiled: CompiledConfs::default(),
            comparisons: 200_000,
        };
        loader.use_plugins(options.plugins, APISIX_PLUGINS);
        loader
    }

    /// Takes the plugins of a family, and the names of others that are known there.
    fn use_plugins(&mut self, plugins: &'a dyn PluginCatalog, others: &[&'static str]) {
        self.plugins = plugins;
        self.plugin_names = plugins.names().into_iter().collect();
        self.known_plugins = self.plugin_names.iter().copied().chain(others.iter().copied()).collect();
        self.known_plugins.sort_unstable();
    }

    /// An error that concerns the whole file.
    fn refuse(&mut self, error: Diagnostic) {
        self.refused = true;
        self.found.push(error);
    }

    /// Puts values in the places of references, and gives the references whose values are not there.
    #[must_use]
    fn resolve(&mut self, node: &mut Node, path: &Path<'_>) -> Vec<Unresolved> {
        let mut references = References {
            variables: self.options.variables,
            may_read: self.options.may_read,
            source: self.options.secrets,
            managers: self.managers.as_ref(),
            revealed: &mut self.revealed,
            left: &mut self.left_references,
            unresolved: Vec::new(),
        };
        references.resolve(node, path, &mut self.found);
        references.unresolved
    }

    /// Warns of references without values, and of the consequences meanwhile. Other findings about the texts of these
    /// references are dropped.
    fn wait_for(&mut self, unresolved: Vec<Unresolved>, meanwhile: &str) {
        for Unresolved { mark, path, reason } in unresolved {
            let code = Code::ReferenceAwaited { reason, meanwhile: meanwhile.to_owned() };
            self.found.push(Diagnostic::warning(mark, path.as_str(), code));
            self.unresolved.insert(path);
        }
    }

    fn warn(&mut self, mark: Mark, path: &str, code: Code) {
        self.found.push(Diagnostic::warning(mark, path, code));
    }

    /// True if an error was found since there were so many findings.
    fn failed_since(&self, before: usize) -> bool {
        self.found.iter().skip(before).any(Diagnostic::is_error)
    }

    fn finish(mut self, name: &str, document: Option<Document>) -> Loaded {
        let usable = match self.options.invalid_items {
            InvalidItems::Refuse => !self.failed_since(0),
            InvalidItems::Skip => !self.refused,
        };
        for found in &mut self.found {
            name.clone_into(&mut found.file);
        }
        let found = self.found.into_iter().enumerate().map(|(index, found)| {
            let mut found = self.revealed.redact(unquoted(found));
            if let Some((_, path)) = self.origins.find(&found.path).filter(|_| index >= self.written) {
                found.path = path;
            }
            found
        });
        self.found = found.collect();
        for dropped in &mut self.dropped {
            if let Some((entity, path)) = self.origins.find(&dropped.path) {
                *dropped = Dropped { path, id: Some(entity.id.clone()) };
            }
        }
        self.found.sort_by_key(|found| found.mark);
        Loaded {
            document: document.filter(|_| usable),
            diagnostics: self.found,
            dropped: self.dropped,
            revealed: self.revealed,
        }
    }
}

/// A finding about a private key or a token, without the value. Findings of plugins about their own secrets quote
/// nothing.
fn unquoted(mut found: Diagnostic) -> Diagnostic {
    let place = found.path.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '[' | ']'));
    let name = place.rsplit('.').next().unwrap_or_default();
    let is_secret = ResourceKind::ALL.into_iter().filter(|kind| place.starts_with(kind.directory())).any(|kind| {
        let secrets = kind.entry().secrets.iter().map(|path| path.trim_end_matches(".*"));
        secrets.filter_map(|path| path.rsplit('.').next()).any(|secret| secret == name)
    });
    if is_secret {
        let mut quotes = false;
        found.code.texts(&mut |field, text| {
            if field == "found" {
                "***".clone_into(text);
                quotes = true;
            }
        });
        if quotes {
            found.hint = None;
        }
    }
    found
}
