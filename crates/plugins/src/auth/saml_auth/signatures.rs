//! Signatures of messages: in the query of a redirect (SAML Bindings section 3.4.4.1), and in documents (SAML Core section 5).
//!
//! Of all that signatures of XML can be, SAML wants little, and no more is taken: one reference to the element that the signature
//! stands in, two transforms, RSA with SHA-2. The libraries for it take far more; what they do of it here is canonical XML.

use std::io::Read;

use aws_lc_rs::digest::{self, SHA256, SHA384, SHA512, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeyPair;
use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PKCS1_SHA512,
    RsaParameters, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bergshamra_c14n::{C14nMode, canonicalize_doc};
use bergshamra_xml::NodeSet;
use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder};
use uppsala::NodeId;
use weir_plugin::Invalid;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};

use super::messages::Kind;
use crate::auth::openid_connect::client::{add_to_form, private_key};
use crate::query;

/// Most bytes of a message.
const MOST: usize = 256 << 10;
/// The reason for a message that nobody has signed, or somebody else.
pub(super) const NOT_SIGNED: &str = "the identity provider has not signed the message";

const DSIG: &str = "http://www.w3.org/2000/09/xmldsig#";
pub(super) const PROTOCOL: &str = "urn:oasis:names:tc:SAML:2.0:protocol";
pub(super) const ASSERTION: &str = "urn:oasis:names:tc:SAML:2.0:assertion";
const ENVELOPED: &str = "http://www.w3.org/2000/09/xmldsig#enveloped-signature";
const EXCLUSIVE: &str = "http://www.w3.org/2001/10/xml-exc-c14n#";
const RSA_SHA256: &str = "http://www.w3.org/2001/04/xmldsig-more#rsa-sha256";
const RSA_SHA384: &str = "http://www.w3.org/2001/04/xmldsig-more#rsa-sha384";
const RSA_SHA512: &str = "http://www.w3.org/2001/04/xmldsig-more#rsa-sha512";
const SHA256_URI: &str = "http://www.w3.org/2001/04/xmlenc#sha256";
const SHA384_URI: &str = "http://www.w3.org/2001/04/xmldsig-more#sha384";
const SHA512_URI: &str = "http://www.w3.org/2001/04/xmlenc#sha512";
/// The algorithm of RSA keys in certificates.
const RSA: &str = "1.2.840.113549.1.1.1";

/// The algorithm of a signature; none that is weak.
fn signature_algorithm(uri: &str) -> Option<&'static RsaParameters> {
    Some(match uri {
        RSA_SHA256 => &RSA_PKCS1_2048_8192_SHA256,
        RSA_SHA384 => &RSA_PKCS1_2048_8192_SHA384,
        RSA_SHA512 => &RSA_PKCS1_2048_8192_SHA512,
        _ => return None,
    })
}

fn digest_algorithm(uri: &str) -> Option<&'static digest::Algorithm> {
    Some(match uri {
        SHA256_URI => &SHA256,
        SHA384_URI => &SHA384,
        SHA512_URI => &SHA512,
        _ => return None,
    })
}

/// The keys of both sides.
pub(super) struct Keys {
    /// The identity provider's (SubjectPublicKeyInfo).
    provider: Vec<u8>,
    own: KeyPair,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

/// A message, before it is read.
pub(super) struct Message {
    text: String,
    /// True where its query is signed.
    is_signed: bool,
}

/// A message that can be read.
pub(super) struct Document<'m> {
    pub(super) tree: uppsala::Document<'m>,
    is_signed: bool,
}

impl<'m> Document<'m> {
    /// Reads a message.
    pub(super) fn read(message: &'m Message) -> Result<Self, &'static str> {
        if message.text.contains("<!DOCTYPE") || message.text.contains("<!ENTITY") {
            return Err("a message with a DTD");
        }
        let tree = uppsala::parse(&message.text).map_err(|_| "a message that is no XML")?;
        Ok(Self { tree, is_signed: message.is_signed })
    }

    /// The element that the message is, if it is of this name.
    pub(super) fn root(&self, name: &str) -> Result<NodeId, &'static str> {
        let root = self.tree.document_element().ok_or("a message without an element")?;
        let is_it = self.tree.element(root).is_some_and(|element| element.matches_name_ns(PROTOCOL, name));
        if is_it { Ok(root) } else { Err("a message of another kind") }
    }

    /// The children of an element with this name.
    pub(super) fn children(&self, of: NodeId, namespace: &str, name: &str) -> Vec<NodeId> {
        self.tree.child_elements_by_name_ns(of, namespace, name)
    }

    /// The only child with this name.
    pub(super) fn child(&self, of: NodeId, namespace: &str, name: &str) -> Option<NodeId> {
        match *self.children(of, namespace, name) {
            [child] => Some(child),
            _ => None,
        }
    }

    pub(super) fn attribute(&self, of: NodeId, name: &str) -> Option<&str> {
        self.tree.get_attribute(of, name)
    }
}

impl Keys {
    pub(super) fn new(idp_cert: &str, sp_cert: &str, sp_private_key: &str) -> Result<Self, Invalid> {
        let provider = rsa_key("idp_cert", idp_cert)?;
        rsa_key("sp_cert", sp_cert)?;
        let own = private_key(sp_private_key).map_err(|reason| Invalid::new("sp_private_key", reason))?;
        Ok(Self { provider, own })
    }

    /// The query with a signed message.
    pub(super) fn signed_query(&self, kind: Kind, message: &str, state: Option<&str>) -> Option<String> {
        let mut deflated = Vec::new();
        DeflateEncoder::new(message.as_bytes(), Compression::default()).read_to_end(&mut deflated).ok()?;
        let mut query = Vec::new();
        add_to_form(&mut query, kind.name(), &STANDARD.encode(deflated));
        if let Some(state) = state {
            add_to_form(&mut query, "RelayState", state);
        }
        add_to_form(&mut query, "SigAlg", RSA_SHA512);
        let mut signature = vec![0; self.own.public_modulus_len()];
        self.own.sign(&RSA_PKCS1_SHA512, &SystemRandom::new(), &query, &mut signature).ok()?;
        add_to_form(&mut query, "Signature", &STANDARD.encode(signature));
        String::from_utf8(query).ok()
    }

    /// The message in a query, whose signature is checked.
    pub(super) fn of_query(&self, kind: Kind, text: &str, fields: &[u8]) -> Result<Message, &'static str> {
        // The signature is of the values as they were encoded.
        let raw = |name: &str| query::argument(fields, name.as_bytes());
        let mut signed = Vec::new();
        for name in [kind.name(), "RelayState", "SigAlg"] {
            if let Some(value) = raw(name) {
                if !signed.is_empty() {
                    signed.push(b'&');
                }
                signed.extend_from_slice(name.as_bytes());
                signed.push(b'=');
                signed.extend_from_slice(value);
            }
        }
        let decoded = |name: &str| {
            let mut value = Vec::new();
            query::decode(raw(name)?, &mut value);
            String::from_utf8(value).ok()
        };
        let (Some(algorithm), Some(signature)) = (decoded("SigAlg"), decoded("Signature")) else {
            return Err(NOT_SIGNED);
        };
        let algorithm = signature_algorithm(&algorithm).ok_or(NOT_SIGNED)?;
        let signature = STANDARD.decode(without_space(&signature)).map_err(|_| NOT_SIGNED)?;
        UnparsedPublicKey::new(algorithm, &self.provider).verify(&signed, &signature).map_err(|_| NOT_SIGNED)?;
        let deflated = STANDARD.decode(without_space(text)).map_err(|_| "a message that is not in base64")?;
        let mut inflated = Vec::new();
        let most = MOST as u64 + 1;
        DeflateDecoder::new(&*deflated)
            .take(most)
            .read_to_end(&mut inflated)
            .map_err(|_| "a message that is not deflated")?;
        Message::new(inflated, true)
    }

    /// The message in a form, whose signature stands in it.
    pub(super) fn of_form(text: &str) -> Result<Message, &'static str> {
        Message::new(STANDARD.decode(without_space(text)).map_err(|_| "a message that is not in base64")?, false)
    }

    /// The one assertion of an answer that the identity provider has signed, by itself or with the answer.
    pub(super) fn signed_assertion(&self, document: &Document<'_>, root: NodeId) -> Result<NodeId, &'static str> {
        if !document.children(root, ASSERTION, "EncryptedAssertion").is_empty() {
            return Err("an encrypted assertion, which is not supported");
        }
        let assertion = document.child(root, ASSERTION, "Assertion").ok_or("an answer without its one assertion")?;
        if document.is_signed {
            return Ok(assertion);
        }
        let signed = self.signed(document, root)?;
        if signed.contains(&root) || signed.contains(&assertion) { Ok(assertion) } else { Err(NOT_SIGNED) }
    }

    /// Checks that the identity provider has signed a whole message.
    pub(super) fn check_whole(&self, document: &Document<'_>, root: NodeId) -> Result<(), &'static str> {
        if document.is_signed || self.signed(document, root)?.contains(&root) { Ok(()) } else { Err(NOT_SIGNED) }
    }

    /// The elements of a document that the identity provider has signed: the message, or its assertion.
    fn signed(&self, document: &Document<'_>, root: NodeId) -> Result<Vec<NodeId>, &'static str> {
        let tree = &document.tree;
        let mut signed = Vec::new();
        for signature in tree.get_elements_by_tag_name_ns(DSIG, "Signature") {
            let parent = tree.parent(signature).ok_or(NOT_SIGNED)?;
            let is_assertion = tree.parent(parent) == Some(root)
                && tree.element(parent).is_some_and(|element| element.matches_name_ns(ASSERTION, "Assertion"));
            if parent != root && !is_assertion || signed.contains(&parent) {
                return Err("a signature where none belongs");
            }
            let read = Signature::read(document, signature, parent);
            let read = read.ok_or("a signature of another form, or by a weak algorithm")?;
            if !read.is_of(document, parent, &self.provider) {
                return Err(NOT_SIGNED);
            }
            signed.push(parent);
        }
        Ok(signed)
    }
}

/// The RSA key of a certificate in PEM.
fn rsa_key(field: &'static str, certificate: &str) -> Result<Vec<u8>, Invalid> {
    let section = pem::parse(certificate).ok().filter(|section| section.tag() == "CERTIFICATE");
    let read = section.and_then(|section| Certificate::from_der(section.contents()).ok());
    let read = read.ok_or_else(|| Invalid::new(field, "expected a certificate in PEM"))?;
    let key = read.tbs_certificate().subject_public_key_info();
    let der = key.to_der().ok().filter(|_| key.algorithm.oid.to_string() == RSA);
    der.ok_or_else(|| Invalid::new(field, "expected a certificate with an RSA key"))
}

/// Base64 with line breaks.
fn without_space(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_whitespace()).collect()
}

impl Message {
    #[cfg(test)]
    pub(super) fn signed(text: &str) -> Self {
        Self { text: text.to_owned(), is_signed: true }
    }

    fn new(text: Vec<u8>, is_signed: bool) -> Result<Self, &'static str> {
        if text.len() > MOST {
            return Err("a message that is too long");
        }
        let text = String::from_utf8(text).map_err(|_| "a message that is not in UTF-8")?;
        Ok(Self { text, is_signed })
    }
}

/// A signature in a document, of its parent alone.
struct Signature {
    element: NodeId,
    info: NodeId,
    /// Prefixes that canonical XML keeps, of the signature's own and of the parent's.
    info_prefixes: Vec<String>,
    prefixes: Vec<String>,
    algorithm: &'static RsaParameters,
    digest: &'static digest::Algorithm,
    digest_value: Vec<u8>,
    value: Vec<u8>,
}

impl Signature {
    fn read(document: &Document<'_>, element: NodeId, parent: NodeId) -> Option<Self> {
        let one = |of: NodeId, name: &str| document.child(of, DSIG, name);
        let algorithm = |of: NodeId| document.attribute(of, "Algorithm");
        let bytes = |of: NodeId| STANDARD.decode(without_space(&document.tree.text_content_deep(of))).ok();
        let info = one(element, "SignedInfo")?;
        let method = one(info, "CanonicalizationMethod")?;
        let reference = one(info, "Reference")?;
        let transforms = document.children(one(reference, "Transforms")?, DSIG, "Transform");
        let [enveloped, exclusive] = *transforms else { return None };
        let id = document.attribute(parent, "ID").filter(|id| !id.is_empty())?;
        let is_right = document.attribute(reference, "URI")?.strip_prefix('#') == Some(id)
            && algorithm(enveloped) == Some(ENVELOPED)
            && [exclusive, method].iter().all(|of| algorithm(*of) == Some(EXCLUSIVE));
        let prefixes = |of: NodeId| {
            let listed = document.child(of, EXCLUSIVE, "InclusiveNamespaces");
            let listed = listed.and_then(|listed| document.attribute(listed, "PrefixList")).unwrap_or_default();
            listed.split_whitespace().map(str::to_owned).collect()
        };
        is_right.then_some(Self {
            element,
            info,
            info_prefixes: prefixes(method),
            prefixes: prefixes(exclusive),
            algorithm: signature_algorithm(algorithm(one(info, "SignatureMethod")?)?)?,
            digest: digest_algorithm(algorithm(one(reference, "DigestMethod")?)?)?,
            digest_value: bytes(one(reference, "DigestValue")?)?,
            value: bytes(one(element, "SignatureValue")?)?,
        })
    }

    /// True if it is this key's signature of the parent, without the signature itself.
    fn is_of(&self, document: &Document<'_>, parent: NodeId, key: &[u8]) -> bool {
        let tree = &document.tree;
        let canonical = |nodes: &NodeSet, prefixes: &[String]| {
            canonicalize_doc(tree, C14nMode::Exclusive, Some(nodes), prefixes).ok()
        };
        let own = NodeSet::tree_with_comments(self.element, tree);
        let content = canonical(&NodeSet::tree_without_comments(parent, tree).subtract(&own), &self.prefixes);
        let info = canonical(&NodeSet::tree_without_comments(self.info, tree), &self.info_prefixes);
        let (Some(content), Some(info)) = (content, info) else { return false };
        digest(self.digest, &content).as_ref() == self.digest_value
            && UnparsedPublicKey::new(self.algorithm, key).verify(&info, &self.value).is_ok()
    }
}
