//! The rules, from a file or from a store: read, checked and compiled.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use weir_config::load::{check_item, load_node, lower_node, read};
use weir_config::node::MAX_TEXT_BYTES;
use weir_config::{
    Apisix, Diagnostic, FrontEnd, InvalidItems, ItemChange, LoadOptions, Loaded, Model, Node, ResourceKey,
    ResourceKind, Revealed, RouterMode, Settings, Severity, file, load, metered,
};
use weir_kong::{Kong, KongWithoutUnsupported, Manifests, Stored, is_manifests};
use weir_plugins::Apis;
use weir_proxy::{Catalog, ChosenPlugins, Compiled, Compiler, Snapshot};
use weir_threescale::Threescale;
use weir_tyk::{Gathered, Place, Tyk};

use crate::cli::{FamilyArg, InvalidItemsArg, RulesArgs, RunArgs, UnsupportedPluginsArg};
use crate::failure::Failure;
use crate::source::changes::Digest;
use crate::source::reload_requests::ReloadRequests;
use crate::source::scripts;
use crate::source::secret_managers::{Access, Answers, SecretManagers};

/// The families whose documents are read.
pub(crate) const FRONT_ENDS: &[&dyn FrontEnd] = &[&Kong, &Tyk, &Threescale, &Apisix];
/// The same, without plugins of Kong that are not supported.
const SKIPPING: &[&dyn FrontEnd] = &[&KongWithoutUnsupported, &Tyk, &Threescale, &Apisix];

/// Name and version, for fields such as `x-mock-by`.
const PRODUCT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// The source of the rules, and the options for reading them.
#[derive(Debug)]
pub(crate) struct Rules {
    source: Source,
    /// Name of the source in messages.
    pub(crate) name: String,
    invalid_items: InvalidItems,
    strict: bool,
    front_ends: &'static [&'static dyn FrontEnd],
    router: RouterMode,
    /// The setting `plugins`.
    plugins: Vec<String>,
    /// The setting `limits.compiled_size`.
    compiled_size: u64,
    /// Secret managers, with a cache of their answers.
    pub(crate) secrets: Arc<SecretManagers>,
    /// Addresses of services that manifests name.
    resolve: Vec<(String, String)>,
    /// APIs that routes may expose.
    pub(crate) apis: Apis,
    /// Compiles each version of the rules.
    pub(crate) compiler: Compiler,
    /// Place of the files of Tyk's family, which are gathered into one document.
    pub(crate) tyk: Option<Place>,
    /// The document that was gathered last, for the positions of findings.
    gathered: Mutex<Gathered>,
    /// Requests of the gateway API to read the files again.
    pub(crate) reloads: Arc<ReloadRequests>,
}

#[derive(Debug)]
enum Source {
    Stdin,
    File(PathBuf),
    /// A tree assembled from a store.
    Store,
    /// A document of Kong's family, assembled from the entities in a store.
    Entities,
}

/// Reads in a thread of its own, for which the C library has memory of its own. What is made of a document afterwards lies
/// elsewhere then, so that the memory of a large document goes back to the system as a whole: in between, each page of a
/// million consumers would stay for something small on it.
fn apart<T: Send>(work: impl Fn() -> T + Sync) -> T {
    let reading = std::thread::Builder::new().name("rules".to_owned()).stack_size(STACK);
    std::thread::scope(|scope| match reading.spawn_scoped(scope, &work) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(_) => work(),
    })
}

/// Stack of the thread that reads, in bytes: that of a main thread.
const STACK: usize = 8 << 20;

/// True for a command about Kong's family: by its flag, or by the content of its file. A file that cannot be read, or that
/// is no document, is none of them; reading it as rules tells of that.
pub(crate) fn is_of_kong(args: &RunArgs) -> bool {
    const VERSION: &str = "_format_version";
    let Some(file) = args.file.as_deref().filter(|file| *file != Path::new("-")) else {
        return args.family == Some(FamilyArg::Kong);
    };
    if file.is_dir() {
        return holds_manifests(file);
    }
    let Ok(bytes) = file::read_beginning(file, MAX_TEXT_BYTES) else { return false };
    let Ok(text) = std::str::from_utf8(&bytes) else { return false };
    // Reading a large file twice costs as much as serving it: what says it at once is looked for before.
    let has_version = |line: &str| line.trim_start_matches(['{', ' ', '"', '\'']).starts_with(VERSION);
    text.lines().take(64).any(has_version)
        || is_manifests(text)
        || text.trim_end().lines().next_back() != Some("#END")
            && Node::parse(text).is_ok_and(|parsed| Kong.recognises(&parsed.root))
}

/// One version of the rules, ready to serve.
#[derive(Debug)]
pub(crate) struct CompiledRules {
    /// Digest of the document, which is not kept because it takes more memory than the compiled configuration.
    pub(crate) digest: Digest,
    pub(crate) snapshot: Arc<Snapshot>,
    /// Warnings, and the errors of items that were left out.
    pub(crate) findings: Vec<Diagnostic>,
    /// Number of items that were left out.
    pub(crate) left_out: usize,
    /// Paths of the items that were left out: `routes[3]`.
    pub(crate) left_out_paths: HashSet<String>,
    /// Answers of secret managers for the references of the rules.
    pub(crate) answers: Answers,
}

/// A checked text, and the answers of secret managers for its references.
#[derive(Debug)]
pub(crate) struct CheckedText {
    loaded: Loaded,
    answers: Answers,
}

impl CheckedText {
    /// The first error of a text that cannot be served.
    pub(crate) fn first_error(&self) -> Option<String> {
        let found = self.loaded.diagnostics.iter().find(|found| found.is_error());
        match &self.loaded.document {
            Some(_) => None,
            None => Some(found.map_or_else(|| "an unknown error".to_owned(), ToString::to_string)),
        }
    }
}

impl Rules {
    /// The rules named on the command line.
    pub(crate) fn new(args: &RulesArgs, settings: &Settings) -> Result<Self, Failure> {
        if args.strict && args.invalid_items == InvalidItemsArg::Skip {
            let message = "--strict treats warnings as errors, --invalid-items skip treats errors as warnings";
            return Err(Failure::Usage(message.to_owned()));
        }
        let stdin = args.is_stdin();
        let apis = Apis::default();
        Ok(Self {
            source: if stdin { Source::Stdin } else { Source::File(args.file.clone()) },
            name: if stdin { "standard input".to_owned() } else { args.file.display().to_string() },
            invalid_items: args.invalid_items(),
            strict: args.strict,
            resolve: args.resolve.clone(),
            front_ends: match args.unsupported_plugins {
                UnsupportedPluginsArg::Refuse => FRONT_ENDS,
                UnsupportedPluginsArg::SkipWithWarning => SKIPPING,
            },
            router: settings.router,
            plugins: settings.plugins.to_vec(),
            compiled_size: settings.limits.compiled_size.bytes(),
            secrets: Arc::new(SecretManagers::new(settings)),
            compiler: Compiler::new(scripts::definitions(), settings, PRODUCT)
                .with_apis(apis.list(settings))
                .with_family(&weir_kong::FAMILY, weir_plugins::kong::definitions())
                .with_family(&weir_tyk::FAMILY, weir_plugins::tyk::definitions())
                .with_family(&weir_threescale::FAMILY, weir_plugins::threescale::definitions()),
            apis,
            tyk: if stdin || holds_manifests(&args.file) { None } else { Place::of(&args.file) },
            gathered: Mutex::default(),
            reloads: Arc::default(),
        })
    }

    /// The rules of a store. An invalid resource is left out together with the resources that refer to it, because one
    /// written by another version or another program must not keep all others from being served.
    pub(crate) fn of_store(settings: &Settings) -> Self {
        let apis = Apis::default();
        Self {
            source: Source::Store,
            name: "the store".to_owned(),
            invalid_items: InvalidItems::Skip,
            strict: false,
            resolve: Vec::new(),
            front_ends: FRONT_ENDS,
            router: settings.router,
            plugins: settings.plugins.to_vec(),
            compiled_size: settings.limits.compiled_size.bytes(),
            secrets: Arc::new(SecretManagers::new(settings)),
            compiler: Compiler::new(scripts::definitions(), settings, PRODUCT).with_apis(apis.list(settings)),
            apis,
            tyk: None,
            gathered: Mutex::default(),
            reloads: Arc::default(),
        }
    }

    /// The rules of a store with entities of Kong's family. None is left out: each change was checked as a whole.
    pub(crate) fn of_entities(settings: &Settings) -> Self {
        let rules = Self::of_store(settings);
        let compiler = rules.compiler.with_family(&weir_kong::FAMILY, weir_plugins::kong::definitions());
        Self { source: Source::Entities, invalid_items: InvalidItems::Refuse, compiler, ..rules }
    }

    /// The rules of a store with these resources, of the family that they are of.
    pub(crate) fn of_keys<'k>(settings: &Settings, mut keys: impl Iterator<Item = &'k ResourceKey>) -> Self {
        match keys.any(|key| key.kind() == ResourceKind::Entities) {
            true => Self::of_entities(settings),
            false => Self::of_store(settings),
        }
    }

    /// True for entities that are lowered as a whole document.
    pub(crate) fn is_of_entities(&self) -> bool {
        matches!(self.source, Source::Entities)
    }

    /// The prefix of resource keys in APISIX's formats: a path in etcd for a store, empty for a file.
    pub(crate) fn key_prefix(&self) -> &'static str {
        match self.source {
            Source::Store => "/apisix/",
            Source::Stdin | Source::File(_) | Source::Entities => "/",
        }
    }

    /// Reads the file, up to one byte more than is accepted, so that the loader reports a file that is too large.
    pub(crate) fn read(&self) -> anyhow::Result<Vec<u8>> {
        if let Some(place) = &self.tyk {
            let gathered = place.gather().map_err(anyhow::Error::msg)?;
            let text = gathered.text.clone().into_bytes();
            *self.gathered.lock().unwrap_or_else(PoisonError::into_inner) = gathered;
            return Ok(text);
        }
        let limit = MAX_TEXT_BYTES + 1;
        let mut text = Vec::new();
        match &self.source {
            Source::Stdin => io::stdin().lock().take(limit as u64).read_to_end(&mut text).map(drop),
            Source::File(path) if path.is_dir() => manifests(path, limit).map(|read| text = read),
            Source::File(path) => file::read_beginning(path, limit).map(|read| text = read),
            Source::Store | Source::Entities => Err(io::Error::other("it is no file")),
        }
        .with_context(|| format!("cannot read {}", self.name))?;
        Ok(text)
    }

    /// The families whose documents are read, with the treatment of plugins that the command line asks for.
    pub(crate) fn front_ends(&self) -> &'static [&'static dyn FrontEnd] {
        self.front_ends
    }

    /// The path of the file, if the rules come from a file that can be watched.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::File(path) => Some(path),
            Source::Stdin | Source::Store | Source::Entities => None,
        }
    }

    /// Checks a text. The result does not borrow the text, so that the caller need not keep both.
    pub(crate) fn load(&self, text: &[u8]) -> CheckedText {
        self.secrets.begin();
        let manifests = std::str::from_utf8(text).ok().filter(|text| is_manifests(text));
        let (mut loaded, answers) = apart(|| {
            self.with_options(|options| match manifests {
                Some(text) => {
                    let (front_end, root) = Manifests::of(text, &self.resolve);
                    lower_node(&self.name, root, &front_end, options)
                }
                None => load(&self.name, text, options),
            })
        });
        loaded.diagnostics = loaded.diagnostics.into_iter().map(|found| self.located(found)).collect();
        CheckedText { loaded, answers }
    }

    /// The tree of a text that can be served, and the findings about it.
    pub(crate) fn tree(&self, text: &[u8]) -> (Option<Node>, Vec<Diagnostic>) {
        match self.compile(self.load(text), 1) {
            Ok(ready) => (self.with_options(|options| read(&self.name, text, options)).0.0, ready.findings),
            Err(findings) => (None, findings),
        }
    }

    /// Checks and compiles a tree. Findings name no file, because a store has none.
    pub(crate) fn compile_tree(&self, root: Node, revision: u64) -> Result<CompiledRules, Vec<Diagnostic>> {
        self.secrets.begin();
        let (loaded, answers) = self.with_options(|options| match self.source {
            Source::Entities => lower_node("", root, &Stored, options),
            _ => load_node("", root, options),
        });
        self.compile(CheckedText { loaded, answers }, revision)
    }

    /// All findings about one resource by itself; `None` for a kind that is not supported.
    pub(crate) fn check_item(&self, kind: ResourceKind, item: Node) -> Option<Vec<Diagnostic>> {
        // The item comes from a client, not from these rules, so it is not trusted.
        self.with_trust(&self.secrets.access(false, false), |options| check_item(kind, item, options))
    }

    /// All findings about a configuration other than these rules.
    pub(crate) fn check_tree(&self, root: Node) -> Vec<Diagnostic> {
        let refuse = InvalidItems::Refuse;
        let access = self.secrets.access(false, false);
        let loaded =
            self.with_trust(&access, |options| load_node("", root, &LoadOptions { invalid_items: refuse, ..*options }));
        let mut found = loaded.diagnostics;
        if let Some(document) = loaded.document {
            let compiled = self.compiler.compile(&Model::from(document), refuse, u64::MAX);
            let more = compiled.map_or_else(|errors| errors, |compiled| compiled.warnings);
            found.extend(more.into_iter().map(|found| loaded.revealed.redact(found)));
            self.compiler.sweep();
        }
        found
    }

    /// Checks and compiles resources into a form for incremental changes. Returns `None` instead of findings, because
    /// compiling the tree of all resources reports them.
    pub(crate) fn compile_pieces(&self, resources: Vec<ItemChange>, revision: u64) -> Option<(CompiledRules, Model)> {
        if self.is_of_entities() {
            return None;
        }
        self.secrets.begin();
        let (changed, answers) = self.with_options(|options| Model::default().change("", resources, options));
        let changed = changed.ok()?;
        let compiled = self.compiler.compile(&changed.model, InvalidItems::Refuse, revision).ok()?;
        let digest = Digest::of(&changed.model);
        Some((clean(digest, compiled, changed.warnings, &[changed.revealed], answers), changed.model))
    }

    /// Checks and compiles changes of the resources of `base`, and returns their places. Each change is checked against
    /// the result of the one before; all are compiled together.
    pub(crate) fn compile_changes(
        &self,
        (before, base): (&Model, &Snapshot),
        changes: Vec<Vec<ItemChange>>,
        revision: u64,
    ) -> Result<(CompiledRules, Model, Vec<ResourceKey>), Vec<Diagnostic>> {
        let (mut model, mut places) = (before.clone(), Vec::new());
        let (mut warnings, mut revealed, mut answers) = (Vec::new(), Vec::new(), Answers::default());
        for change in changes {
            let (changed, more) = self.with_options(|options| model.change("", change, options));
            let changed = changed?;
            answers.extend(more);
            model = changed.model;
            places.extend(changed.keys);
            warnings.extend(changed.warnings);
            revealed.push(changed.revealed);
        }
        places.sort_unstable();
        places.dedup();
        let compiled = self.compiler.change(base, &model, &places, revision);
        let compiled =
            compiled.map_err(|errors| errors.into_iter().map(|e| redact(e, &revealed)).collect::<Vec<_>>())?;
        Ok((clean(Digest::default(), compiled, warnings, &revealed, answers), model, places))
    }

    fn with_options<T>(&self, read: impl FnOnce(&LoadOptions<'_>) -> T) -> (T, Answers) {
        let access = self.secrets.access(!self.is_stored(), true);
        (self.with_trust(&access, read), access.answers())
    }

    fn is_stored(&self) -> bool {
        matches!(self.source, Source::Store | Source::Entities)
    }

    /// Reads with references, which reach the targets that `access` allows.
    fn with_trust<T>(&self, access: &Access<'_>, read: impl FnOnce(&LoadOptions<'_>) -> T) -> T {
        /// Number of times that reading may build the parts that compiling builds, in order to check them.
        const TIMES: u64 = 4;
        let plugins = chosen_plugins(&self.plugins);
        let may_read = |name: &str| access.may_read(name);
        let options = LoadOptions {
            invalid_items: self.invalid_items,
            strict: self.strict,
            // A reference of Kong's is bound by the same setting as others.
            variables: &|name| {
                let may_read = !self.is_of_entities() || may_read(name).is_ok();
                std::env::var(name).ok().filter(|_| may_read)
            },
            may_read: &may_read,
            secrets: access,
            plugins: &plugins,
            router: self.router,
            front_ends: self.front_ends,
        };
        metered(self.compiled_size.saturating_mul(TIMES), || read(&options)).0
    }

    /// Compiles checked rules.
    ///
    /// # Errors
    /// All findings, with at least one error among them.
    pub(crate) fn compile(&self, checked: CheckedText, revision: u64) -> Result<CompiledRules, Vec<Diagnostic>> {
        let CheckedText { loaded, answers } = checked;
        let mut findings = loaded.diagnostics;
        let Some(document) = loaded.document else { return Err(self.judged(findings)) };
        let model = Model::from(document);
        let digest = Digest::of(&model);
        let compiled = match self.compiler.compile(&model, self.invalid_items, revision) {
            Ok(compiled) => compiled,
            Err(errors) => {
                let errors = errors.into_iter().map(|error| loaded.revealed.redact(error));
                findings.extend(errors.map(|error| self.named(error)));
                return Err(self.judged(findings));
            }
        };
        let unbuilt = compiled.warnings.iter().filter(|found| found.is_error());
        let left_out = loaded.dropped.len() + unbuilt.clone().count();
        let item_of = |found: &Diagnostic| found.path.find(']').map(|end| found.path[..=end].to_owned());
        let dropped = loaded.dropped.into_iter().map(|item| item.path);
        let left_out_paths = dropped.chain(unbuilt.filter_map(item_of)).collect();
        let warnings = compiled.warnings.into_iter().map(|warning| loaded.revealed.redact(warning));
        findings.extend(warnings.map(|warning| self.named(warning)));
        if self.strict && !findings.is_empty() {
            return Err(self.judged(findings));
        }
        Ok(CompiledRules { digest, snapshot: compiled.snapshot, findings, left_out, left_out_paths, answers })
    }

    /// In strict mode every finding is an error.
    fn judged(&self, mut findings: Vec<Diagnostic>) -> Vec<Diagnostic> {
        if self.strict {
            for found in &mut findings {
                found.severity = Severity::Error;
            }
        }
        findings
    }

    fn named(&self, found: Diagnostic) -> Diagnostic {
        let unnamed = found.file.is_empty() && !self.is_stored();
        if unnamed { self.located(found.in_file(&self.name)) } else { found }
    }

    /// A finding in a gathered document as one in the file that it is about.
    fn located(&self, found: Diagnostic) -> Diagnostic {
        match &self.tyk {
            Some(_) => self.gathered.lock().unwrap_or_else(PoisonError::into_inner).locate(found),
            None => found,
        }
    }
}

/// True for a folder of manifests; other folders are of Tyk's family.
fn holds_manifests(path: &Path) -> bool {
    path.is_dir() && manifests(path, MAX_TEXT_BYTES).is_ok()
}

/// The manifests in a folder as one text of many documents, in the order of the files' names.
fn manifests(folder: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    let is_manifest = |path: &PathBuf| path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
    files.retain(is_manifest);
    files.sort_unstable();
    let mut text = Vec::new();
    for path in files {
        let left = most.saturating_sub(text.len());
        let read = file::read_beginning(&path, left)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        text.extend_from_slice(b"---\n");
        text.extend_from_slice(&read);
        if !text.ends_with(b"\n") {
            text.push(b'\n');
        }
    }
    if !std::str::from_utf8(&text).is_ok_and(is_manifests) {
        return Err(io::Error::other(
            "a folder holds manifests of Kubernetes: expected apiVersion and kind in its files",
        ));
    }
    Ok(text)
}

/// The plugins enabled by the settings.
pub(crate) fn chosen_plugins(names: &[String]) -> ChosenPlugins<'_> {
    ChosenPlugins { catalog: Catalog(scripts::definitions()), names }
}

/// Rules without left-out items.
fn clean(
    digest: Digest,
    compiled: Compiled,
    mut findings: Vec<Diagnostic>,
    revealed: &[Revealed],
    answers: Answers,
) -> CompiledRules {
    findings.extend(compiled.warnings.into_iter().map(|warning| redact(warning, revealed)));
    CompiledRules {
        digest,
        snapshot: compiled.snapshot,
        findings,
        left_out: 0,
        left_out_paths: HashSet::new(),
        answers,
    }
}

/// A finding with these secrets redacted.
fn redact(found: Diagnostic, revealed: &[Revealed]) -> Diagnostic {
    revealed.iter().fold(found, |found, revealed| revealed.redact(found))
}

/// Fingerprint of a text, so that a file that was only touched is not compiled again.
pub(crate) fn fingerprint(text: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text);
    hasher.finish()
}
