//! Token files, good and bad.

use super::*;

const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";

#[test]
fn a_file_has_names_and_tokens() {
    let text = format!(
        "# tokens\nweb = {{ sha256 = [\"{A}\"], origins = [\"https://*.a.example\"] }}\n[partner_1-x]\r\nsha256 = [\n  \"{B}\",\n  \"{}\"]\nrequests_per_minute = 600\nburst = 50\nexpires = 2027-01-31\n",
        "0".repeat(64)
    );
    let file = TokenFile::parse("f", &text).unwrap();
    let names: Vec<_> = file.names.keys().map(|TokenName(name)| &**name).collect();
    assert_eq!(names, ["partner_1-x", "web"]);
    let [partner, web] = [0, 1].map(|n| file.names.values().nth(n).unwrap());
    assert_eq!((web.sha256.len(), web.origins.len()), (1, 1));
    assert_eq!((web.burst, web.expires), (None, None));
    let lower = Digest::try_from(B.to_lowercase());
    assert_eq!(Ok(partner.sha256[0].get_ref()), lower.as_ref());
    assert_eq!(partner.sha256.len(), 2);
    assert_eq!(partner.requests_per_minute, NonZeroU32::new(600));
    assert_eq!(partner.burst, NonZeroU32::new(50));
    assert!(TokenFile::parse("f", "").unwrap().names.is_empty());
}

#[test]
fn dates_are_those_of_rfc_3339() {
    // `date -u -d TEXT +%s`
    for (text, expected) in [
        ("2027-01-31", Some(1_801_353_600)),
        ("2027-01-31T12:00:00Z", Some(1_801_396_800)),
        ("2027-01-31 12:00:00.5+02:00", Some(1_801_389_600)),
        ("2027-01-31T12:00:00", None),
        ("12:00:00", None),
    ] {
        let text = format!("web = {{ sha256 = [\"{A}\"], expires = {text} }}");
        let read = TokenFile::parse("f", &text).ok();
        let at = read.map(|file| file.names.values().next().unwrap().expires.unwrap().0);
        let at = at.map(|at| at.duration_since(SystemTime::UNIX_EPOCH).unwrap());
        assert_eq!(at.map(|at| at.as_secs()), expected, "{text}");
    }
}

#[test]
fn problems_have_line_and_column_and_not_what_is_there() {
    for row in PROBLEMS.trim().lines() {
        let (text, expected) = row.split_once(" -> ").unwrap();
        let secret = format!("og_{}", "5ecret".repeat(8));
        let text = text.replace("TOKEN", &secret).replace("DIGEST", A);
        let said = TokenFile::parse("f", &text.replace(" \\ ", "\n")).unwrap_err();
        assert!(said.starts_with(expected), "{text}: {said}");
        for secret in ["5ecret", "aaaa"] {
            assert!(!said.contains(secret), "{said}");
        }
    }
}

// A backslash ends a line. The last row is how files were written before.
const PROBLEMS: &str = r#"
TOKEN = 1 -> f:1:1: expected a name: 1 to 64 of A-Z
[TOKEN] \ sha256 = ["DIGEST"] -> f:1:2: expected a name
"w.b" = { sha256 = ["DIGEST"] } -> f:1:1: expected a name
DIGESTn = { sha256 = [] } -> f:1:1: expected a name
[web] -> f:1:1: missing field `sha256`
[web] \ sha256 = "TOKEN" -> f:2:10: expected a sequence
[web] \ sha256 = ["TOKEN"] -> f:2:10: expected the SHA-256 of a token, 64 hex digits
[web] \ sha256 = ["DIGESTa"] -> f:2:10: expected the SHA-256 of a token
[web] \ TOKEN = 1 -> f:2:1: expected one of `sha256`, `requests_per_minute`, `burst`, `origins`, `expires`
[web] \ sha256 = [] \ Burst = 3 -> f:3:1: expected one of `sha256`
[web] \ sha256 = [] \ burst = 0 -> f:3:9: expected a nonzero u32
[web] \ sha256 = [] \ burst = "TOKEN" -> f:3:9: expected a nonzero u32
[web] \ sha256 = [] \ expires = "TOKEN" -> f:3:11: expected a TOML datetime
[web] \ sha256 = [] \ expires = 2027-01-31T12:00:00 -> f:3:11: expected a date, such as 2027-01-31
[web] \ sha256 = [] \ origins = ["*", "https://a/"] -> f:3:11: expected an origin as browsers send it
[web] \ sha256 = [] -> f: web has no token: expected a digest in sha256
a = { sha256 = ["DIGEST"] } \ b = { sha256 = ["DIGEST"] } -> f:2:17: the same token is in this file twice
[web] \ sha256 = [] \ [web] -> f:3:2: duplicate key
web TOKEN -> f:1:
web = "TOKEN -> f:1:
[web] \ expires = TOKEN -> f:2:
web DIGEST burst=5 -> f:1:
"#;

#[test]
fn tokens_differ_and_their_digest_is_that_of_sha256sum() {
    let (one, other) = (new_token().unwrap(), new_token().unwrap());
    assert_ne!(one, other);
    assert_eq!(crate::client_tokens::redact(&one, 99), "og_[redacted]");
    assert_eq!(
        line(&TokenName("web".into()), "abc"),
        "web = { sha256 = [\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"] }"
    );
    let file = TokenFile::parse("f", &line(&TokenName("web".into()), &one)).unwrap();
    assert_eq!(
        *file.names.values().next().unwrap().sha256[0].get_ref(),
        digest(one.as_bytes())
    );
}
