var o=()=>matchMedia("(pointer: coarse)").matches;export{o as a};
