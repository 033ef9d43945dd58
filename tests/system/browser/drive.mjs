// A browser for tests: reads commands as lines of JSON and answers each with one line of JSON.
//
//   node drive.mjs PACKAGES CHROMIUM       PACKAGES holds node_modules (package.json next to this file)

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [packages, chromium] = process.argv.slice(2);
const require = createRequire(join(packages, "package.json"));
const { chromium: driver } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf-8");
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--no-proxy-server",
]; // prettier-ignore
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

const browser = await driver.launch({ executablePath: chromium, args: FLAGS });
let page = null;
let messages = []; // errors and warnings of the console, uncaught exceptions, requests to elsewhere
let origin = "";

const commands = {
  async open({ url, width = 1280, height = 900, scheme = "light", motion = "reduce" }) {
    await page?.context().close();
    const context = await browser.newContext({
      viewport: { width, height }, colorScheme: scheme, reducedMotion: motion, locale: "en-GB", bypassCSP: false,
      hasTouch: width < 500, deviceScaleFactor: width < 500 ? 2 : 1, ignoreHTTPSErrors: true,
    }); // prettier-ignore
    page = await context.newPage();
    page.setDefaultTimeout(20000);
    origin = new URL(url).origin;
    messages = [];
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) messages.push(`${message.type()}: ${message.text()}`);
    });
    page.on("pageerror", (error) => messages.push(`exception: ${error.message}`));
    page.on("request", (request) => {
      const where = new URL(request.url());
      if (where.protocol.startsWith("http") && where.origin !== origin) messages.push(`elsewhere: ${request.url()}`);
    });
    await page.goto(url);
  },
  messages: async () => messages,
  /** Wait until the text of an element matches a regular expression; return it. */
  async text({ selector, fits = "" }) {
    await page.waitForFunction(
      ([element, pattern]) => new RegExp(pattern).test(document.querySelector(element)?.textContent ?? ""),
      [selector, fits],
    );
    return page.textContent(selector);
  },
  count: async ({ selector }) => page.locator(selector).count(),
  attribute: async ({ selector, name }) => page.getAttribute(selector, name),
  press: async ({ key }) => page.keyboard.press(key),
  focus: async ({ selector }) => page.focus(selector),
  click: async ({ selector }) => page.click(selector),
  fill: async ({ selector, value }) => page.fill(selector, value),
  select: async ({ selector, value }) => page.selectOption(selector, value),
  evaluate: async ({ code }) => page.evaluate(code),
  /** Write a screenshot of the page, or of one element, to a file. */
  async shot({ file, selector }) {
    if (selector) await page.locator(selector).screenshot({ path: file });
    else await page.screenshot({ path: file, fullPage: true });
  },
  /** Return the violations that the accessibility checker finds. */
  async axe() {
    await page.evaluate(AXE);
    return page.evaluate(async (tags) => {
      const found = await window.axe.run(document, { runOnly: tags, resultTypes: ["violations"] });
      return found.violations.map((violation) => ({ rule: violation.id, help: violation.help, nodes: violation.nodes.map((node) => node.html.slice(0, 200)).slice(0, 5) }));
    }, RULES);
  },
};

console.log(JSON.stringify({ ready: browser.version() }));
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  try {
    console.log(JSON.stringify({ answer: (await commands[command.do](command)) ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error.message ?? error).slice(0, 2000) }));
  }
}
await browser.close();
