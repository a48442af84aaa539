//! Compression as curl sees it, and on the shipped routes.

use std::process::Command;

use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;

use super::{CODINGS, compress, count, decoded};
use crate::support::{Gateway, Setup, until};

/// The shipped routes before a sandbox, with this configuration.
async fn shipped(config: &str) -> Gateway {
    let sandbox = Sandbox::new(Settings::default());
    let setup = Setup::alone().chain().sandbox(&sandbox).config(config);
    let gateway = setup.start();
    gateway.until_tips_are_known().await;
    gateway
}

/// The path of a block that lists many items.
const BLOCK: &str = "/runes/v1/blocks/840173/activity?limit=60";

#[tokio::test]
async fn curl_shows_the_same_json_in_each_coding() {
    let curl = |arguments: &[&str], url: &str| {
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--show-error",
            "--max-time",
            "20",
            "--noproxy",
            "*",
        ]);
        let output = command.args(arguments).arg(url).output().unwrap();
        let fault = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{fault}");
        output.stdout
    };
    let version = Command::new("curl").arg("--version").output();
    let version = match version {
        Ok(output) => String::from_utf8(output.stdout).unwrap(),
        Err(error) => {
            assert!(std::env::var_os("ORDGATE_CI").is_none(), "curl: {error}");
            eprintln!("skipped: there is no curl");
            return;
        }
    };
    for (coding, feature) in [("zstd", "zstd"), ("br", "brotli"), ("gzip", "libz")] {
        if !version.contains(feature) {
            eprintln!("skipped: this curl has no {coding}");
            continue;
        }
        let gateway = shipped(&format!("answers.compression.codings = [\"{coding}\"]")).await;
        let url = format!("http://{}{BLOCK}", gateway.public);
        let plain = curl(&[], &url);
        let json: Value = serde_json::from_slice(&plain).unwrap();
        assert!(json["results"].as_array().unwrap().len() > 20, "{coding}");
        for _request in 0..2 {
            assert_eq!(curl(&["--compressed"], &url), plain, "{coding}");
        }
        until("it is compressed", || count(&gateway, "made") > 0).await;
        assert_eq!(curl(&["--compressed"], &url), plain, "{coding}");
        let head = curl(&["--compressed", "--head"], &url);
        let head = String::from_utf8(head).unwrap();
        assert!(
            head.contains(&format!("content-encoding: {coding}\r\n")),
            "{head}"
        );
    }
}

#[tokio::test]
async fn a_page_that_is_cut_from_windows_is_compressed_once_it_is_stored() {
    let gateway = shipped("").await;
    // The window, and a page that is cut from it: both are stored.
    let cut = "/runes/v1/blocks/840173/activity?limit=20&offset=7";
    let window = gateway.get(BLOCK).await;
    let page = gateway.get(cut).await;
    assert!(
        page.must("cache-status").starts_with("ordgate; hit"),
        "it is cut"
    );
    for coding in CODINGS {
        for (target, plain) in [(cut, &page), (BLOCK, &window)] {
            compress(&gateway, target, coding).await;
            let fields = [("accept-encoding", coding)];
            let answer = gateway.request("GET", target, &fields).await;
            assert_eq!(answer.must("content-encoding"), coding, "{target}");
            assert_eq!(decoded(&answer), plain.body, "{target}");
        }
    }
    // Other pages are still cut from the window as it is.
    let other = "/runes/v1/blocks/840173/activity?limit=20&offset=8";
    let fields = [("accept-encoding", "zstd")];
    let answer = gateway.request("GET", other, &fields).await;
    assert!(answer.must("cache-status").starts_with("ordgate; hit"));
    assert_eq!(answer.field("content-encoding"), None);
    assert_eq!(answer.json()["offset"], 8);
    assert_eq!(count(&gateway, "made"), 6);
}
