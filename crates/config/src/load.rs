//! From the bytes of a rules file to a [`Document`], with everything that is wrong on the way.

mod change;
mod checks;
mod document;
mod ending;
mod foreign;
mod item;
mod left_out;
mod link;
mod lone;
mod pem;
mod plugins;
mod rules;
mod text;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::catalog::{APISIX_PLUGINS, NoPlugins, PluginCatalog};
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::env::{MayRead, Variables};
use crate::node::{Mark, Node, Path};
use crate::resource::{Document, HostPattern, Route, SecretManager};
use crate::secret::{NoSecrets, References, Revealed, SecretSource, Unresolved};
use crate::settings::RouterMode;
pub use change::Changed;
pub use ending::Ending;
pub use left_out::place_of;
pub use lone::{Written, check_item, in_force, items};
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

/// How a rules file is read.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// What happens to a file with an invalid item.
    pub invalid_items: InvalidItems,
    /// Refuses what is otherwise only warned about: a YAML file without `#END` (it may be half written), and `[]` for
    /// a document.
    pub strict: bool,
    /// Variables for `${{NAME}}` and `$env://NAME`.
    pub variables: Variables<'a>,
    /// Whether `$env://NAME` may be read; else why not.
    pub may_read: MayRead<'a>,
    /// Who is asked for `$secret://MANAGER/ID/KEY`.
    pub secrets: &'a dyn SecretSource,
    /// The plugins there are.
    pub plugins: &'a dyn PluginCatalog,
    /// The router that will match the routes, for warnings about paths it takes literally.
    pub router: RouterMode,
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
    };
}

/// What happens to a file with an invalid item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InvalidItems {
    /// The whole file is refused.
    #[default]
    Refuse,
    /// The item alone is dropped, and with it the items that refer to it, as APISIX does.
    Skip,
}

/// What came of a rules file.
#[derive(Debug)]
pub struct Loaded {
    /// The rules; `None` when they are refused.
    pub document: Option<Document>,
    /// What is wrong or doubtful, by position.
    pub diagnostics: Vec<Diagnostic>,
    /// The items that are not in the document because they are invalid.
    pub dropped: Vec<Dropped>,
    /// The secrets in the document. Whoever says something about it takes them out.
    pub revealed: Revealed,
}

/// An item that was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Where it stood: `routes[3]`.
    pub path: String,
    /// Its id, when it has a readable one.
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
struct Loader<'a> {
    options: &'a LoadOptions<'a>,
    plugin_names: HashSet<&'a str>,
    /// Those and APISIX's own, in the order of the alphabet, for the nearest one.
    known_plugins: Vec<&'a str>,
    found: Vec<Diagnostic>,
    dropped: Vec<Dropped>,
    /// Where secrets are kept; `None` until that was read.
    managers: Option<HashMap<String, Arc<SecretManager>>>,
    revealed: Revealed,
    /// Paths of references to secrets that nobody was asked for.
    left_references: Vec<String>,
    /// Paths of references whose values are not there.
    unresolved: HashSet<String>,
    /// Paths of which all is said that is wrong.
    settled: Vec<String>,
    /// Ids of items that are there but invalid, by section.
    invalid_ids: HashMap<&'static str, HashSet<String>>,
    /// Routes that are left out, with nothing but their places.
    kept_places: Vec<Route>,
    /// Routes that cannot be left out, because their places are not known.
    unplaced: Vec<Diagnostic>,
    /// Hosts of services that are left out, where they can be read, by id.
    lost_hosts: HashMap<String, Option<Vec<HostPattern>>>,
    /// Errors in the text that belong to an item, by the item's path.
    text_errors: HashMap<String, Vec<Diagnostic>>,
    /// Whether something is wrong that no dropped item can put right.
    refused: bool,
    /// How many more names may be compared to find the one that was meant.
    comparisons: usize,
}

impl<'a> Loader<'a> {
    fn new(options: &'a LoadOptions<'a>) -> Self {
        let plugin_names: HashSet<&str> = options.plugins.names().into_iter().collect();
        let mut known_plugins: Vec<&str> = plugin_names.iter().copied().chain(APISIX_PLUGINS.iter().copied()).collect();
        known_plugins.sort_unstable();
        Self {
            options,
            plugin_names,
            known_plugins,
            found: Vec::new(),
            dropped: Vec::new(),
            managers: None,
            revealed: Revealed::default(),
            left_references: Vec::new(),
            unresolved: HashSet::new(),
            settled: Vec::new(),
            invalid_ids: HashMap::new(),
            kept_places: Vec::new(),
            unplaced: Vec::new(),
            lost_hosts: HashMap::new(),
            text_errors: HashMap::new(),
            refused: false,
            comparisons: 200_000,
        }
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

    /// Warns of references whose values are not there, and of what that means meanwhile. What else is said of their texts
    /// is of no use.
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

    /// Whether an error was found since there were so many findings.
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
        let found = self.found.into_iter().map(|found| self.revealed.redact(unquoted(found)));
        self.found = found.collect();
        self.found.sort_by_key(|found| found.mark);
        Loaded {
            document: document.filter(|_| usable),
            diagnostics: self.found,
            dropped: self.dropped,
            revealed: self.revealed,
        }
    }
}

/// A finding about a private key or a token, without what it quotes of it. What plugins find about their own secrets quotes
/// nothing.
fn unquoted(mut found: Diagnostic) -> Diagnostic {
    let place = found.path.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '[' | ']'));
    let name = place.rsplit('.').next().unwrap_or_default();
    let is_secret = match name {
        "client_key" => true,
        "key" | "keys" => place.starts_with("ssls"),
        "token" => place.starts_with("secrets"),
        _ => false,
    };
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
