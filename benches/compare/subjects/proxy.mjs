// A hand-written caching proxy, as many have one: node's http module and a Map. Answers are kept
// for some seconds, and requests for the same page wait for one fetch.
//
//     node proxy.mjs PORT ORIGIN_PORT KEY SECONDS

import http from "node:http";

const [port, origin, key, seconds] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });
const MOST_ENTRIES = 50_000;
// URL -> { until, answer: Promise of { status, type, body } }
const cache = new Map();

function fetchPage(url) {
    return new Promise((resolve, reject) => {
        const options = { agent, port: Number(origin), path: url, headers: { "x-api-key": key }, timeout: 30_000 };
        const request = http.get(options, (response) => {
            const parts = [];
            response.on("data", (part) => parts.push(part));
            response.on("error", reject);
            response.on("end", () =>
                resolve({
                    status: response.statusCode,
                    type: response.headers["content-type"] ?? "application/json",
                    body: Buffer.concat(parts),
                }),
            );
        });
        request.on("timeout", () => request.destroy(new Error("time-out")));
        request.on("error", reject);
    });
}

function answerFor(url) {
    const now = Date.now();
    const entry = cache.get(url);
    if (entry && entry.until > now) return entry.answer;
    const answer = fetchPage(url);
    const fresh = { until: now + 30_000, answer };
    cache.delete(url);
    cache.set(url, fresh);
    // The oldest first: a Map keeps the order in which keys were set.
    if (cache.size > MOST_ENTRIES) cache.delete(cache.keys().next().value);
    answer.then(
        ({ status }) => {
            fresh.until = status === 200 ? Date.now() + Number(seconds) * 1000 : status === 404 ? Date.now() + 1000 : 0;
        },
        () => (fresh.until = 0),
    );
    return answer;
}

http.createServer(async (request, response) => {
    if (request.method !== "GET") return response.writeHead(405).end();
    try {
        const { status, type, body } = await answerFor(request.url);
        response.writeHead(status, {
            "content-type": type,
            "content-length": body.length,
            "access-control-allow-origin": "*",
        });
        response.end(body);
    } catch {
        response.writeHead(502).end();
    }
}).listen(Number(port), "127.0.0.1");
