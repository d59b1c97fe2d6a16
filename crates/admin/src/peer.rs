//! Findings as APISIX would see them.

use weir_config::schema::Fault;
use weir_config::{Code, ExprFault, NodeFault};

/// A finding as APISIX knows it: a fault that APISIX has words for, or one that only this gateway knows.
#[derive(Debug)]
pub(crate) enum Peer<'a> {
    /// A rule of a JSON Schema.
    Schema(Fault),
    /// A rule of the schema that holds for the key of a hash.
    HashKey(Fault),
    /// There is no plugin of that name.
    NoPlugin(Lack<'a>),
    /// A plugin of a credential does not authenticate.
    NoAuthentication,
    /// The plugin stands in another global rule.
    InOtherGlobalRule { rule: &'a str },
    /// Two consumers have one credential.
    SameCredential,
    /// A condition, with the reason in words of this gateway.
    Condition(&'a ExprFault, &'a str),
    /// Two fields of which only one may be there.
    OnlyOneOf { one: &'static str, other: &'static str },
    /// A route without a path.
    NoPath,
    /// A route that does nothing.
    NoPurpose,
    /// An upstream that hashes nothing.
    NoHashKey,
    /// An upstream that rewrites the host to nothing.
    NoUpstreamHost,
    /// An IPv6 address of a node without brackets.
    BareIpv6,
    /// A port of a node that is none.
    Port,
    /// A text that is no address and no range.
    NoAddressRange,
    /// Passive checks without active ones.
    PassiveAlone,
    /// A certificate without names.
    NoNames,
    /// More certificates than keys, or fewer.
    UnevenKeys,
    /// There is no such secret manager.
    NoManager,
    /// A secret manager lacks a field.
    ManagerNeeds { field: &'static str },
    /// Consequence of another error of the same resource.
    Consequence,
    /// A fault of this gateway's own.
    Ours,
}

/// Reasons why there is no plugin of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lack<'a> {
    /// Nobody has it.
    Unknown,
    /// APISIX has it, and this gateway has not.
    Unsupported { plugin: &'a str },
    /// The settings leave it out.
    TurnedOff { plugin: &'a str },
}

impl<'a> Peer<'a> {
    /// The fault that APISIX knows a code as. There is no wildcard, so every new code is decided here.
    #[rustfmt::skip]
    pub(crate) fn of(code: &'a Code) -> Self {
        match code {
            Code::Misfit { fault, .. } => Self::Schema((**fault).clone()),
            Code::InAlternative { inside, .. } => Self::Schema(Fault::NoAlternative { inside: *inside }),
            Code::RepeatedItem { first, .. } => Self::Schema(Fault::Repeated { first: *first }),
            Code::UnknownField => Self::Schema(Fault::UnknownField),
            Code::MissingField { field } => Self::Schema(Fault::MissingField { name: field.clone() }),
            Code::HashKeyCharacters { key, pattern, .. } | Code::HashKeyVariable { key, pattern, .. } => {
                Self::HashKey(Fault::Pattern { pattern: (*pattern).to_owned(), found: key.clone() })
            }
            Code::UnknownPlugin { .. } => Self::NoPlugin(Lack::Unknown),
            Code::UnsupportedPlugin { plugin } => Self::NoPlugin(Lack::Unsupported { plugin }),
            Code::PluginTurnedOff { plugin } => Self::NoPlugin(Lack::TurnedOff { plugin }),
            Code::NotAuthenticating { .. } => Self::NoAuthentication,
            Code::InOtherGlobalRule { rule, .. } => Self::InOtherGlobalRule { rule },
            Code::SameCredential { .. } => Self::SameCredential,
            Code::Condition { fault, reason } | Code::ConditionInside { fault, reason, .. } => {
                Self::Condition(fault, reason)
            }
            Code::OnlyOneOf { one, other } => Self::OnlyOneOf { one, other },
            Code::RouteWithoutPath => Self::NoPath,
            Code::RouteWithoutPurpose => Self::NoPurpose,
            Code::ChashWithoutKey { .. } => Self::NoHashKey,
            Code::NoUpstreamHost => Self::NoUpstreamHost,
            Code::Node { fault } | Code::NodeHost { fault, .. } => match fault {
                NodeFault::BareIpv6 => Self::BareIpv6,
                NodeFault::Port { .. } => Self::Port,
                NodeFault::UnixForm | NodeFault::UnixPath(_) | NodeFault::UnixPort | NodeFault::NotIpv6
                | NodeFault::EmptyHost | NodeFault::ServiceForm | NodeFault::ServicePort | NodeFault::Scheme
                | NodeFault::Path | NodeFault::NotAHost => Self::Ours,
            },
            Code::NotAddressRange { .. } => Self::NoAddressRange,
            Code::PassiveAlone => Self::PassiveAlone,
            Code::SslWithoutNames => Self::NoNames,
            Code::UnevenKeys { .. } => Self::UnevenKeys,
            Code::UnknownManager { .. } => Self::NoManager,
            Code::ManagerNeeds { field, .. } => Self::ManagerNeeds { field },
            Code::GlobalRuleNotLeftOut | Code::StreamRouteNotLeftOut | Code::MayGuardAll => Self::Consequence,

            // The text of a file, its placeholders and secrets.
            Code::TextTooLong { .. } | Code::FileTooLong { .. } | Code::NotUtf8 | Code::NotYaml { .. }
            | Code::MergeConflict | Code::NotJson { .. } | Code::NestedTooDeep | Code::TooManyAliased
            | Code::AliasInsideItself | Code::KeyNotText { .. } | Code::MergeNotMapping { .. }
            | Code::NotOfTag { .. } | Code::UnknownTag { .. } | Code::RepeatedKey { .. }
            | Code::SecondDocument { .. } | Code::FileEmpty | Code::FileOpenEnded | Code::NoRoutes
            | Code::NotSections { .. } | Code::OtherTool { .. } | Code::UnknownSection | Code::PluginsAllThere
            | Code::MetadataMapping | Code::NoPlaceholder | Code::UnsetVariable { .. }
            | Code::ShellPlaceholder { .. } | Code::UnresolvedReference { .. } | Code::ReferenceAwaited { .. } | Code::StaleSecret { .. }
            | Code::NotPem { .. }
            // Values that no rule of a schema speaks of.
            | Code::UnknownFieldIgnored | Code::RepeatedField { .. } | Code::Unlike { .. }
            | Code::Unreadable { .. } | Code::NullTaken { .. } | Code::NotSupported { .. } | Code::Unsupported { .. } | Code::NoEffect { .. }
            | Code::LongTime { .. } | Code::Expected { .. }
            // Items and references, which the store is asked for first.
            | Code::NoIdOfMetadata | Code::RepeatedId { .. } | Code::LeftOut | Code::ClientVerifierNotLeftOut
            | Code::StreamRouteWithoutUpstream | Code::NotOnStreams { .. } | Code::OnlyOnStreams { .. } | Code::NodeWithoutPort
            | Code::RouteNotLeftOut | Code::OtherId { .. } | Code::NotChangeable | Code::NoReferent { .. }
            | Code::InvalidReferent { .. } | Code::NoClientCertificate { .. }
            | Code::NoConsumerOfCredential { .. } | Code::OtherUsername | Code::NoServiceOfDecoration { .. }
            | Code::OtherServiceOfDecoration { .. } | Code::RepeatedFieldPath { .. } | Code::ScriptOfService
            // Rules of plugins.
            | Code::DoubtfulCondition { .. } | Code::NoMetadata | Code::UnknownVariable { .. }
            | Code::ConsumerAwaited { .. } | Code::NoUpstream { .. } | Code::NoProto { .. } | Code::UnbuildableUpstream { .. }
            | Code::PluginRule { .. } | Code::FamilyRule { .. }
            // Routes, upstreams, certificates and secret managers.
            | Code::NeverMatches { .. } | Code::MatchedLiterally { .. } | Code::HostHoldsPort { .. }
            | Code::PortOfScheme | Code::TakenAsRoundrobin { .. } | Code::HashKeyText { .. }
            | Code::HashKeyConstant | Code::HashKeyDoubtful { .. } | Code::FieldNeeds { .. } | Code::ChecksWithoutTls
            | Code::OwnFieldOfCheck { .. } | Code::AmbiguousStatus { .. } | Code::PemExpected | Code::OldTls
            | Code::OnlyOldTls | Code::ManagerWithoutKind | Code::ManagerWithout { .. } | Code::TokenInManager
            | Code::InvalidProto { .. } | Code::NoRegistry { .. }
            // Settings.
            | Code::MixedSettings { .. } | Code::UnknownToApisix | Code::RulesForSettings
            | Code::NoSettingOfVariable | Code::NoSuchSetting | Code::SettingsAtOdds { .. }
            | Code::WrittenForIt { .. } | Code::OldProtocols { .. } | Code::NotARole { .. }
            | Code::NeedsSettings { .. } | Code::DataPlaneAsksEtcd | Code::PluginsNotThere { .. }
            // Compiling, and serving what was compiled.
            | Code::TooLarge { .. } | Code::TooManyNodes { .. } | Code::TooManyEntries { .. }
            | Code::UnbuildablePlugin { .. } | Code::Certificate { .. } | Code::NameTaken { .. }
            | Code::NoSelfSigned { .. } | Code::NoStaple { .. } | Code::Unmatchable { .. } | Code::Answers503 { .. } | Code::CutOff
            | Code::Store { .. } | Code::NotServed { .. } => Self::Ours,
        }
    }
}
