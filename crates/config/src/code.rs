//! Codes of findings: one entry for each thing that can be wrong, with its data and its text.
//!
//! A [`Diagnostic`](crate::Diagnostic) carries a code and never a text of its own. Programs match on codes (the Admin API
//! answers in APISIX's words that way), people read the text, and so a text can be reworded without changing what any
//! program does.

use std::borrow::Cow;
use std::fmt;

use weir_expr::ExprFault;

use crate::node::{MAX_ALIASED_NODES, MAX_DEPTH, MAX_TEXT_BYTES, Mark};
use crate::resource::NodeFault;
use crate::schema::Fault;

/// Declares the codes: name, data, and the text that is rendered from the data.
macro_rules! codes {
    ($($name:ident $({ $($field:ident: $type:ty),* $(,)? })? => $text:literal;)*) => {
        /// A finding without its place: the kind of fault, and the data that its text is rendered from.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Code {
            $(
                #[doc = $text]
                $name $({ $(#[doc = concat!("`", stringify!($field), "` of the text")] $field: $type),* })?,
            )*
        }

        impl fmt::Display for Code {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name $({ $($field),* })? => {
                        $($(let _ = $field;)*)?
                        write!(f, $text)
                    })*
                }
            }
        }

        impl Code {
            /// Name for programs, in the form `only_one_of`.
            #[must_use]
            pub fn name(&self) -> String {
                let name = match self {
                    $(Self::$name $({ $($field: _),* })? => stringify!($name),)*
                };
                snake_case(name)
            }
        }

        impl Texts for Code {
            fn visit(&mut self, _: &'static str, each: &mut dyn FnMut(&'static str, &mut String)) {
                match self {
                    $(Self::$name $({ $($field),* })? => {
                        $($($field.visit(stringify!($field), each);)*)?
                    })*
                }
            }
        }

        #[cfg(test)]
        impl Sample for Vec<Code> {
            fn sample() -> Self {
                vec![$(Code::$name $({ $($field: Sample::sample()),* })?),*]
            }
        }
    };
}

codes! {
    // The text of a file.
    TextTooLong { bytes: usize } => "the text has {bytes} bytes, more than the {MAX_TEXT_BYTES} that are read";
    FileTooLong { bytes: usize } => "the file has {bytes} bytes, more than the {MAX_TEXT_BYTES} that are read";
    NotUtf8 => "not UTF-8 text";
    NotYaml { reason: String } => "not YAML: {reason}";
    MergeConflict => "not YAML: an unresolved merge conflict begins here";
    NotJson { reason: String } => "{reason}";
    NestedTooDeep => "nested more than {MAX_DEPTH} levels deep";
    TooManyAliased => "the aliases of this file stand for more than {MAX_ALIASED_NODES} values";
    AliasInsideItself => "the alias is inside the value it stands for";
    KeyNotText { found: String } => "a key must be a text, found {found}";
    MergeNotMapping { found: String } => "expected a mapping or a list of mappings to merge, found {found}";
    NotOfTag { text: String, tag: String } => "{text} is not of the type !!{tag}";
    UnknownTag { tag: String } => "the YAML tag {tag} is not known here";
    RepeatedKey { first: Mark } => "the same key stands at {first} already";
    SecondDocument { file: &'static str } => "a second YAML document begins here; a {file} file has one";
    FileEmpty => "the file is empty";
    FileOpenEnded => "the file does not end with a line #END, so it may be incomplete";
    NoRoutes => "the file is empty: there is no route";
    NotSections { found: String } => "expected a mapping with sections such as routes, found {found}";
    OtherTool { what: &'static str } => "not a rules file: this is {what}";
    UnknownSection => "unknown section, left aside";
    PluginsAllThere => "has no effect: every plugin of the gateway is available";
    MetadataMapping => "a mapping from plugin names is taken as a list of items with that id; APISIX drops it";

    // Placeholders, the environment and secrets.
    NoPlaceholder => "not a placeholder, so it is left as it is";
    UnsetVariable { name: String } => "the environment variable {name} is not set";
    ShellPlaceholder { text: String } => "{text} is left as it is";
    UnresolvedReference { reason: String } => "{reason}";
    ReferenceAwaited { reason: String, meanwhile: String } => "{reason}; until it is there, {meanwhile}";
    StaleSecret { reason: String } => "{reason}; its last value serves on";
    NotPem { reference: String } => "the value of {reference} is no PEM: expected -----BEGIN …";

    // Schemas and types.
    Misfit { expected: String, found: String, fault: Box<Fault> } => "expected {expected}, found {found}";
    InAlternative { inside: usize, of: Box<Code> } => "{of}";
    RepeatedItem { item: String, first: usize } => "{item} stands twice in the list";
    UnknownField => "unknown field";
    UnknownFieldIgnored => "unknown field, it has no effect";
    MissingField { field: String } => "the field {field} is missing";
    RepeatedField { field: &'static str } => "the field {field} stands twice";
    Unlike { expected: Cow<'static, str>, found: String } => "expected {expected}, found {found}";
    NotAddressRange { expected: &'static str, found: String } => "expected {expected}, found {found}";
    Unreadable { reason: String } => "{reason}";
    NullTaken { meaning: &'static str } => "null is taken as {meaning}";
    Unsupported { refusal: String } => "{refusal}";
    NotSupported { feature: Cow<'static, str> } => "not supported yet: {feature}";
    NoEffect { why: Cow<'static, str> } => "has no effect {why}";
    OnlyOneOf { one: &'static str, other: &'static str } => "only one of {one} and {other} is allowed";

    // Items and what they refer to.
    NoIdOfMetadata => "an item of plugin_metadata needs an id: the name of its plugin";
    RepeatedId { id: String, item: &'static str, first: String } => "the id {id} stands twice; this {item} takes the place of {first}";
    LeftOut => "this item is left out, because it is invalid";
    GlobalRuleNotLeftOut => "an invalid global rule is never left out: that could open what it guards";
    ClientVerifierNotLeftOut => "this certificate cannot be left out: it verifies clients, and its names are invalid, so another one could take them";
    MayGuardAll => "this resource is invalid and may guard any request, and no earlier configuration is known: every request is answered 503";
    RouteNotLeftOut => "this route cannot be left out: what it matches is invalid, so another route could take its requests";
    StreamRouteNotLeftOut => "an invalid stream route is never left out: another one could take its connections";
    OtherId { key: &'static str, id: String, place: String } => "the {key} is {id}, but the item stands under {place}";
    NotChangeable => "this configuration was read whole and can only be replaced whole";
    NoReferent { kind: String, id: String } => "there is no {kind} with the id {id}";
    InvalidReferent { kind: String, id: String } => "the {kind} {id} is invalid";
    NoClientCertificate { id: String } => "there is no item of ssls with type: client and the id {id}";
    NoConsumerOfCredential { consumer: String, state: &'static str } => "the consumer {consumer} of this credential is {state}";
    NoServiceOfDecoration { service: String } => "there is no service '{service}', so this weighs nothing";
    OtherServiceOfDecoration { service: String } => "the item stands below another service than '{service}'";
    RepeatedFieldPath { path: String, other: String } => "{path} has the weights of '{other}' as well, which hold";
    ScriptOfService => "the script of the service runs in the place of its plugins, and of the route's";
    OtherUsername => "the id of a consumer is its username; this one differs";

    // Plugins of an item.
    UnknownPlugin { plugin: String, shown: String } => "there is no plugin {shown}";
    UnsupportedPlugin { plugin: String } => "not supported yet: the plugin {plugin}";
    PluginTurnedOff { plugin: String } => "the plugin {plugin} is not in the setting `plugins`";
    NotAuthenticating { known: String } => "a credential takes authentication plugins only: {known}";
    InOtherGlobalRule { plugin: String, rule: String, at: Mark } => "the plugin {plugin} is in the global rule {rule} already, at {at}";
    Condition { fault: ExprFault, reason: String } => "{reason}";
    ConditionInside { at: String, fault: ExprFault, reason: String, nearest: String } => "{at}{reason}{nearest}";
    DoubtfulCondition { reason: String } => "{reason}";
    NoMetadata => "this plugin has no metadata: it has no effect";
    UnknownVariable { reason: String, then: &'static str } => "{reason}{then}";
    ConsumerAwaited { consumer: String } => "there is no consumer '{consumer}'; until it is there, requests without credentials are answered 401";
    NoUpstream { upstream: String } => "there is no upstream '{upstream}'";
    NoProto { proto: String } => "there is no proto '{proto}'";
    UnbuildableUpstream { upstream: String, of: Box<Code> } => "the upstream '{upstream}' cannot be built: {of}";
    SameCredential { one: String, other: String, what: &'static str } => "consumers '{one}' and '{other}' have the same {what}";
    PluginRule { text: Cow<'static, str> } => "{text}";

    // Families other than APISIX's.
    FamilyRule { text: Cow<'static, str> } => "{text}";

    // Routes and services.
    RouteWithoutPath => "a route needs uri or uris";
    StreamRouteWithoutUpstream => "without upstream, upstream_id or service_id every connection is closed";
    NotOnStreams { what: String } => "{what} cannot be used for streams of TCP or UDP";
    OnlyOnStreams { scheme: &'static str } => "an upstream with scheme: {scheme} is for stream routes only";
    NodeWithoutPort => "a node of a stream needs a port: there is none that follows from its scheme";
    RouteWithoutPurpose => "a route needs at least one of plugins, upstream, upstream_id and service_id";
    NeverMatches { path: String } => "{path} can never match: a path begins with '/'";
    MatchedLiterally { path: String } => "{path} is matched literally, ':' and all";
    LongTime { seconds: String } => "{seconds} seconds is a long time";

    // Upstreams.
    Node { fault: NodeFault } => "{fault}";
    NodeHost { host: String, fault: NodeFault } => "{host}: {fault}";
    HostHoldsPort { text: String, host: String, port: i64 } => "{text} holds a port: taken as host {host} and port {port}";
    PortOfScheme => "the node has no port, so that of the scheme http is taken: 80";
    TakenAsRoundrobin { text: String } => "{text} is taken as roundrobin";
    ChashWithoutKey { what: &'static str } => "type: chash needs key: {what}";
    HashKeyCharacters { found: String, key: String, pattern: &'static str } => "expected letters, digits, '-' and '_', found {found}";
    HashKeyVariable { known: String, found: String, key: String, pattern: &'static str } => "expected one of {known} and arg_NAME, found {found}";
    HashKeyText { reason: String } => "{reason}";
    HashKeyDoubtful { reason: String } => "{reason}; without it requests are hashed on the client's address";
    HashKeyConstant => "names no variable, so requests are hashed on the client's address";
    NoRegistry { registry: &'static str } => "no servers of this registry are set, so requests are answered 503: discovery.{registry} in the settings names them";
    NoUpstreamHost => "pass_host: rewrite needs upstream_host";
    FieldNeeds { field: &'static str, other: &'static str } => "{field} needs {other}";
    PassiveAlone => "passive checks need active ones: nothing else would bring a node back";
    ChecksWithoutTls => "checks of the type http are made without TLS, which nodes of the scheme https will not answer";
    OwnFieldOfCheck { name: String } => "{name} is not sent: the gateway writes that field itself";
    AmbiguousStatus { status: String } => "{status} stands in both lists and counts as a success";

    // Certificates and secret managers.
    SslWithoutNames => "a certificate that is shown to clients needs sni or snis: the names it is for";
    UnevenKeys { certs: usize, keys: usize } => "{certs} certificates in certs, but {keys} keys";
    PemExpected => "expected PEM: -----BEGIN …";
    OldTls => "TLSv1.1 is not spoken any more (RFC 8996)";
    OnlyOldTls => "TLSv1.1 is not spoken any more (RFC 8996), so no version is left";
    ManagerWithoutKind => "an item of secrets needs an id with the kind of the manager: vault/1, file/1";
    UnknownManager { kind: String, shown: String, known: String } => "there is no secret manager {shown}; there are {known}";
    ManagerNeeds { kind: String, field: &'static str } => "{kind} needs {field}";
    ManagerWithout { kind: String, field: &'static str } => "{kind} has no {field}";
    TokenInManager => "a token cannot be kept by a secret manager; take it from the environment: $env://NAME";
    InvalidProto { reason: String } => "{reason}";

    // Settings.
    MixedSettings { theirs: String, ours: String } => "{theirs} stands in APISIX's config.yaml and {ours} in this gateway's weir.yaml; a file is one or the other";
    UnknownToApisix => "has no effect: APISIX has no such key";
    RulesForSettings => "not a settings file: this is a rules file";
    NoSettingOfVariable => "there is no setting for this environment variable";
    NoSuchSetting => "there is no such setting";
    SettingsAtOdds { rule: &'static str } => "{rule}";
    WrittenForIt { reason: String, written: &'static str } => "{reason}: {written} is written for it";
    OldProtocols { names: String } => "{names} has no effect here: it is not spoken any more";
    NotARole { name: String } => "{name} is no role: admin or viewer; the Admin API does not start with it";
    Expected { what: &'static str } => "expected {what}";
    NeedsSettings { what: &'static str } => "needs {what}";
    DataPlaneAsksEtcd => "not supported: data planes ask etcd, not the control plane";
    PluginsNotThere { names: String } => "the gateway does not have: {names}";

    // Compiling, and serving what was compiled.
    TooLarge { what: String, reason: String } => "{what}{reason}";
    TooManyNodes { most: usize, found: usize } => "an upstream has at most {most} nodes, found {found}";
    TooManyEntries { what: String, most: u64 } => "{what}, more than limits.route_entries allows: {most}";
    UnbuildablePlugin { reason: String } => "{reason}";
    Certificate { reason: String } => "{reason}";
    NameTaken { name: String } => "{name} stands in another item before; this one takes its place";
    NoSelfSigned { reason: String } => "no certificate can be made for trying TLS out: {reason}";
    NoStaple { reason: String } => "no status of this certificate can be stapled: {reason}";
    Unmatchable { reason: String } => "{reason}";
    Answers503 { instead: String } => "its requests are answered 503, because it is left out{instead}";
    CutOff => "the file is only the beginning of the live one, so it is taken for incomplete";
    Store { reason: String } => "{reason}";
    NotServed { reason: String } => "{reason}";
}

impl Code {
    /// Calls `each` with every text in the data that was taken from a configuration or from its surroundings, and the
    /// name of its field.
    pub(crate) fn texts(&mut self, each: &mut dyn FnMut(&'static str, &mut String)) {
        self.visit("", each);
    }

    /// True where a field is not known, refused or not.
    #[must_use]
    pub fn is_unknown_field(&self) -> bool {
        match self {
            Self::InAlternative { of, .. } => of.is_unknown_field(),
            code => matches!(code, Self::UnknownField | Self::UnknownFieldIgnored),
        }
    }

    /// Hides the values that the text quotes as found, and no others.
    pub(crate) fn hide_found(&mut self, is_it: impl Fn(&str) -> bool) {
        self.texts(&mut |field, text| {
            if field == "found" && is_it(text) {
                "***".clone_into(text);
            }
        });
    }
}

/// Data of codes that may hold texts.
pub(crate) trait Texts {
    /// Calls `each` with the texts in it; `field` is the name that it has itself.
    fn visit(&mut self, field: &'static str, each: &mut dyn FnMut(&'static str, &mut String));
}

impl Texts for String {
    fn visit(&mut self, field: &'static str, each: &mut dyn FnMut(&'static str, &mut String)) {
        each(field, self);
    }
}

impl Texts for Cow<'static, str> {
    fn visit(&mut self, field: &'static str, each: &mut dyn FnMut(&'static str, &mut String)) {
        // Borrowed texts are parts of the program.
        if let Self::Owned(text) = self {
            each(field, text);
        }
    }
}

impl<T: Texts> Texts for Box<T> {
    fn visit(&mut self, field: &'static str, each: &mut dyn FnMut(&'static str, &mut String)) {
        (**self).visit(field, each);
    }
}

macro_rules! without_texts {
    ($($type:ty)*) => {$(
        impl Texts for $type {
            fn visit(&mut self, _: &'static str, _: &mut dyn FnMut(&'static str, &mut String)) {}
        }
    )*};
}
without_texts!(&'static str usize u64 i64 Mark);

impl Texts for ExprFault {
    fn visit(&mut self, field: &'static str, each: &mut dyn FnMut(&'static str, &mut String)) {
        if let Self::Operator(name) = self {
            each(field, name);
        }
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
pub(crate) trait Sample {
    fn sample() -> Self;
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::collections::HashSet;

    use weir_expr::ExprFault;

    use super::{Code, Sample};
    use crate::node::Mark;
    use crate::resource::NodeFault;
    use crate::schema::Fault;

    macro_rules! samples {
        ($($type:ty: $value:expr;)*) => {$(
            impl Sample for $type {
                fn sample() -> Self {
                    $value
                }
            }
        )*};
    }
    samples! {
        String: "SECRET".to_owned();
        &'static str: "STATIC";
        Cow<'static, str>: Cow::Owned("SECRET".to_owned());
        usize: 7;
        u64: 7;
        i64: 7;
        Mark: Mark { line: 7, column: 7 };
        Box<Code>: Box::new(Code::PluginRule { text: Cow::Owned("SECRET".to_owned()) });
        Box<Fault>: Box::new(Fault::Pattern { pattern: "SECRET".to_owned(), found: "SECRET".to_owned() });
        NodeFault: NodeFault::Port { found: "SECRET".to_owned() };
        ExprFault: ExprFault::Operator("SECRET".to_owned());
    }

    #[test]
    fn every_code_renders_and_has_a_name_of_its_own() {
        let codes = <Vec<Code> as Sample>::sample();
        let mut names = HashSet::new();
        for code in &codes {
            let (name, text) = (code.name(), code.to_string());
            assert!(!text.is_empty() && !text.contains('{') && !text.contains('\n'), "{name}: {text}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
            assert!(names.insert(name.clone()), "{name} stands twice");
        }
        assert!(codes.len() > 100, "{}", codes.len());
        assert_eq!(Code::OnlyOneOf { one: "a", other: "b" }.name(), "only_one_of");
    }

    #[test]
    fn no_text_of_a_configuration_escapes_redaction() {
        for mut code in <Vec<Code> as Sample>::sample() {
            code.texts(&mut |_, text| "***".clone_into(text));
            // The remaining texts are parts of the program.
            assert!(!format!("{code:?}").replace("pattern: \"SECRET\"", "").contains("SECRET"), "{code:?}");
        }
    }
}
