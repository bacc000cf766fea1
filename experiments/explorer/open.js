/* Opens the run that is within the page. */

async function openExplorer() {
  const place = document.getElementById("explorer");
  place.hidden = false;
  const app = new Explorer(await unpack(document.getElementById("run-data").textContent));
  document.getElementById("loading").hidden = true;
  window.explorer = app;
  performance.mark("explorer-ready");
}

openExplorer().catch((error) => {
  document.getElementById("loading").textContent = `The diagram cannot be drawn in this browser (${error.message}); the story below is complete.`;
  throw error;
});
