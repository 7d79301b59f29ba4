// node first_results.js FOLDER QUERY: the pages that the search of a built site finds, the best first, as JSON.
const fs = require("fs");
const vm = require("vm");

const [folder, query] = process.argv.slice(2);
const read = (name) => fs.readFileSync(`${folder}/${name}`, "utf8");
const page = { console, query, DOCUMENTATION_OPTIONS: {}, SPHINX_HIGHLIGHT_ENABLED: false, _ready: () => {} };
page.window = page; // what the scripts expect of a browser
page.document = { getElementById: () => null };
page._ = (text) => text;
vm.createContext(page);
const scripts = ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"].map(read);
vm.runInContext(`${scripts.join("\n;")};var results = Search._performSearch(...Search._parseQuery(query));`, page);
console.log(JSON.stringify(page.results.reverse().map(([name]) => name)));
