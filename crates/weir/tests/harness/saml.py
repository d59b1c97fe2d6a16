"""An identity provider of SAML 2.0, by pysaml2 and xmlsec1.

    saml.py FOLDER ENTITY ACS SLS CERTIFICATE

Its certificate is FOLDER/idp.crt; `ready PORT` is printed when it answers. ENTITY is the service provider with these places and
this certificate. GET /sso takes requests by redirects: it answers with a form as JSON, or with a redirect, as the request asks.
The field X-Sign says what is signed in a form: `assertion`, `response`, `both` or `none`. GET /out?NAME begins a logout.
"""
import http.server
import json
import pathlib
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit

from saml2 import BINDING_HTTP_POST, BINDING_HTTP_REDIRECT
from saml2.config import IdPConfig
from saml2.saml import NAMEID_FORMAT_PERSISTENT, NameID
from saml2.server import Server
from saml2.xmldsig import DIGEST_SHA256, SIG_RSA_SHA256

folder, entity, acs, sls, certificate = sys.argv[1:]
folder = pathlib.Path(folder)
key, own = str(folder / "idp.key"), str(folder / "idp.crt")
subprocess.run(
    ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=idp", "-keyout", key, "-out", own],
    check=True,
    stderr=subprocess.DEVNULL,
)
body = "".join(line for line in pathlib.Path(certificate).read_text().splitlines() if not line.startswith("-"))
METADATA = f"""<md:EntityDescriptor xmlns:md="urn:oasis:names:tc:SAML:2.0:metadata" entityID="{entity}">
<md:SPSSODescriptor AuthnRequestsSigned="true" protocolSupportEnumeration="urn:oasis:names:tc:SAML:2.0:protocol">
<md:KeyDescriptor use="signing"><ds:KeyInfo xmlns:ds="http://www.w3.org/2000/09/xmldsig#"><ds:X509Data>
<ds:X509Certificate>{body}</ds:X509Certificate></ds:X509Data></ds:KeyInfo></md:KeyDescriptor>
<md:SingleLogoutService Binding="{BINDING_HTTP_REDIRECT}" Location="{sls}"/>
<md:AssertionConsumerService Binding="{BINDING_HTTP_POST}" Location="{acs}" index="0"/>
<md:AssertionConsumerService Binding="{BINDING_HTTP_REDIRECT}" Location="{acs}" index="1"/>
</md:SPSSODescriptor></md:EntityDescriptor>"""


def name_id(name):
    return NameID(format=NAMEID_FORMAT_PERSISTENT, text=name)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/out":
            _, request = idp.create_logout_request(sls, entity, name_id=name_id(url.query), sign=False)
            return self.redirect(request, sls, None, False)
        signed = (query["SAMLRequest"], BINDING_HTTP_REDIRECT, query.get("RelayState"), query["SigAlg"], query["Signature"])
        try:
            request = idp.parse_authn_request(*signed)
        except Exception:
            request = None
        if request is None:
            request = idp.parse_logout_request(*signed)
            assert request.message.name_id.text == "jack", request.message
            answer = idp.create_logout_response(request.message, [BINDING_HTTP_REDIRECT], sign=False)
            return self.redirect(answer, sls, query.get("RelayState"), True)
        signs = self.headers.get("X-Sign", "assertion")
        by_form = request.message.protocol_binding == BINDING_HTTP_POST
        arguments = idp.response_args(request.message)
        arguments.pop("binding", None)
        answer = idp.create_authn_response(
            {"uid": ["jack"]},
            name_id=name_id("jack"),
            authn={"class_ref": "urn:oasis:names:tc:SAML:2.0:ac:classes:Password", "authn_auth": "idp"},
            sign_response=by_form and signs in ("response", "both"),
            sign_assertion=by_form and signs in ("assertion", "both"),
            sign_alg=SIG_RSA_SHA256,
            digest_alg=DIGEST_SHA256,
            **arguments,
        )
        if not by_form:
            return self.redirect(answer, acs, query["RelayState"], True)
        self.answer(200, json.dumps({"document": str(answer), "state": query["RelayState"]}))

    def redirect(self, message, place, state, is_response):
        sent = idp.apply_binding(
            BINDING_HTTP_REDIRECT, str(message), place, state or "", response=is_response, sign=True, sigalg=SIG_RSA_SHA256
        )
        self.answer(302, "", dict(sent["headers"])["Location"])

    def answer(self, status, text, location=None):
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
base = f"http://127.0.0.1:{listener.server_port}"
service = {
    "endpoints": {
        "single_sign_on_service": [(f"{base}/sso", BINDING_HTTP_REDIRECT)],
        "single_logout_service": [(f"{base}/sso", BINDING_HTTP_REDIRECT)],
    },
    "want_authn_requests_signed": True,
    "policy": {"default": {"lifetime": {"minutes": 15}}},
}
configuration = IdPConfig().load(
    {
        "entityid": f"{base}/idp",
        "xmlsec_binary": "/usr/bin/xmlsec1",
        "key_file": key,
        "cert_file": own,
        "service": {"idp": service},
        "metadata": {"inline": [METADATA]},
    }
)
idp = Server(config=configuration)
print("ready", listener.server_port, flush=True)
listener.serve_forever()
